"""A store on the simulated disk: how it is opened after each end, read, and checked against the model."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from mqbroker.config import StoreSettings
from mqbroker.errors import MQError, StoreDamaged
from mqbroker.store import MessageStore, open_store
from mqbroker.store.checkpoint import decode_checkpoint
from mqbroker.store.consumequeue_entry import ENTRY_BYTES
from mqbroker.store.linux_aio import LinuxAio
from mqbroker.store.syncs import AioSyncs, ISyncs, WorkerSyncs
from mqbroker.wire.properties import DISPATCH_MARK
from mqbroker.wire.record import NewMessage, decode_record
from tests.store.harness import HOST, START_S, now
from tests.store.simulation import coverage, spoil
from tests.store.simulation.calls import load
from tests.store.simulation.disk import DiskFaults, SimDisk
from tests.store.simulation.model import Entry, Model, SyncSpan, Violation, require
from tests.store.simulation.retention import RetentionCheck
from tests.store.simulation.steps import Options
from tests.store.simulation.syncs import TimedSyncs
from tests.store.simulation.tables import TableCheck
from tests.store.simulation.threads import Ended
from tests.store.simulation.worker import SimWorker, Switching

ROOT = "/data/store"
LOG = f"{ROOT}/commitlog"
V6 = bytes(range(16)) + b"\0\0\x2a\x9f"
_DRAIN_STEPS = 2000
_READS_MAX = 10


class PageUnreadable(Exception):
    """What was to be read is on a page that goes on being unreadable."""


async def _of(found: Any) -> Any:
    return await found if isinstance(found, Deferred) or inspect.iscoroutine(found) else found


class Life:
    """The store between its ends; raises Violation where a promise does not hold."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.counts: Counter[str] = Counter()
        self.disk = SimDisk()
        self.clock = Clock()
        self.clock.rightNow = START_S
        share, seed = options.get("switches", (0.0, 0))
        self.switching = Switching(share, Random(seed))
        self.worker = SimWorker()
        settings = self.settings()
        commit_ms = max(settings.commit_interval_commit_log_ms, settings.commit_commit_log_thorough_interval_ms)
        self.model = Model(options["flush_ms"] / 1000, commit_s=commit_ms / 1000)
        self.violations: list[Violation] = []
        self._written = 0
        self._has_failed_sync = False  # in this life of the process
        self._end = ("power", 0)
        self.high_s = 0.0  # the clock went back from here
        self._life = 0
        self._shortage: SyncSpan | None = None
        self.linux_aio: LinuxAio | None = None
        self._is_cold = "cold" in options.get("extras", ())
        self._checkpoint_before = b""  # what it said when something that it covers was spoilt
        self._heal()
        self.retention = RetentionCheck(self)
        self.table = TableCheck(self)
        self.store = self._open_anew("new", 0)

    def settings(self) -> StoreSettings:
        options = self.options
        rules: dict[str, Any] = {
            "clean_file_forcibly_enable": False,
            "file_reserved_time_hours": 24 * 366 * 100,
            **options.get("settings", {}),
        }
        return StoreSettings(
            store_path_root_dir=ROOT,
            mapped_file_size_commit_log=options["segment_bytes"],
            mapped_file_size_consume_queue=options["queue_file_bytes"],
            message_index_enable=options["index"],
            max_hash_slot_num=options["slots"],
            max_index_num=options["index_entries"],
            flush_interval_commit_log_ms=options["flush_ms"],
            flush_interval_consume_queue_ms=options["queue_flush_ms"],
            sync_flush_timeout_ms=options["flush_timeout_ms"],
            **rules,
        )

    def open(self, disk: SimDisk, clock: Clock, worker: SimWorker) -> MessageStore:
        host = V6 if self.options["ipv6_store"] else HOST
        syncs = TimedSyncs(self._log_syncs(disk, clock, worker), self.model)
        return open_store(self.settings(), disk=disk, clock=clock, worker=worker, store_host=host, log_syncs=syncs)

    def _log_syncs(self, disk: SimDisk, clock: Clock, worker: SimWorker) -> ISyncs:
        syncs = WorkerSyncs(worker)
        if disk is not self.disk or "kernel queue" not in self.options.get("extras", ()):
            return syncs
        calls = disk.calls
        calls.aio.run = worker.run_in_kernel
        self.linux_aio = load("mqbroker.store.linux_aio", calls).LinuxAio(
            calls.aio, clock.seconds, call_later=clock.callLater
        )
        return AioSyncs(self.linux_aio, syncs)

    def _open_anew(self, end: str, seed: int) -> MessageStore:
        """Open the store on what an end left, however often opening ends as well."""
        rng = Random(seed)
        for attempt in range(20):
            if attempt:
                if self.disk.is_off:
                    end = self._worse(end, self._end[0])
                    self.disk = self.disk.crashed(rng) if self._end[0] == "power" else self.disk.killed(rng)
                    self.counts["end while opening"] += 1
                else:
                    self.disk = self.disk.killed(rng)
                    self._heal()
            if self._is_cold:
                self.disk.drop(rng, 1.0 if end == "power" else rng.random())
            failed_reads = self.disk.reads_failed
            clock = Clock()
            clock.rightNow = self.clock.rightNow
            self.worker.end()
            self.clock, self.worker = clock, SimWorker(self.switching, self.disk.calls.threads.begun)
            self.disk.on_call = self.worker.switch
            self.disk.on_write = self._written_file
            self.retention.stop()
            self.disk.now_ms = self._now_ms
            self._note_first_files()
            if end == "kill":
                self._check_file_sizes()
            try:
                store = self.open(self.disk, clock, self.worker)
            except Ended:
                continue
            except OSError as error:
                self._refused(end, error, failed_reads)
                continue
            except MQError as error:
                raise Violation("opens again", f"after {end}: {error!r}") from error
            self._life += 1
            self._has_failed_sync = False
            self.store = store
            self.table.open()
            store.start()
            self.retention.start()
            self._do_lift_short()  # a read that cannot open its file fails, and only that read
            if self.disk.has_bad_pages:
                self._read_beside_bad_pages()
            self._old_end = store.log_end
            self._check_recovered(end)
            self._check_table(end)
            return store
        raise Violation("opens again", "not in twenty attempts")

    def _refused(self, end: str, error: OSError, failed_reads: int) -> None:
        """Opening was refused, for which the disk must have been the reason. Raises Violation."""
        disk = self.disk
        if disk.reads_failed > failed_reads:
            self.counts["opening refused by an unreadable page"] += 1
            require(bool(error.filename), "opens again", f"a refusal names no file: {error!r}")
            return
        self.counts["opening refused by the disk"] += 1
        if disk.faults.room_bytes is None and not disk.is_short and not disk.syncs_failed:
            raise Violation("opens again", f"after {end}: {error!r}") from error
        if disk.syncs_failed:
            self.model.unsynced_may_go = True

    @staticmethod
    def _worse(one: str, other: str) -> str:
        order = ("new", "stop", "kill", "power")
        return max(one, other, key=order.index)

    def _now_ms(self) -> int:
        return int(self.clock.rightNow * 1000)

    def _check_file_sizes(self) -> None:
        """A Java broker would start too: with files of other sizes than those of its settings it does not."""
        for folder, setting in (("commitlog", "segment_bytes"), ("consumequeue", "queue_file_bytes")):
            wanted = self.options[setting]
            for path, inode in self.disk.files(f"{ROOT}/{folder}"):
                require(inode.size == wanted, "Java opens it after a kill", f"{path} has {inode.size} bytes")

    def _note_first_files(self) -> None:
        """Note where the first file of each queue begins."""
        found: dict[tuple[str, int], int] = {}
        for path, _ in self.disk.files(f"{ROOT}/consumequeue"):
            topic, queue_id, name = path.split("/")[-3:]
            if queue_id.isdecimal():
                base = int(name) // ENTRY_BYTES
                found[topic, int(queue_id)] = min(base, found.get((topic, int(queue_id)), base))
        self.model.files_from = found

    def _reopen(self, end: str, seed: int) -> None:
        self.counts[f"reopened after {end}"] += 1
        self.store = self._open_anew(end, seed)
        self.model.unsynced_may_go = False

    def end(self, end: str, seed: int) -> None:
        """End the process or the machine, and start again."""
        rng = Random(seed)
        if self.model.removed > self.model.floor:
            self.counts["kill during a deletion"] += end == "kill"
        if self.worker.jobs:
            self.counts[f"{end} while the worker was busy"] += 1
        self.disk = self.disk.crashed(rng) if end == "power" else self.disk.killed(rng)
        self._reopen(end, seed)

    def _read_record(self, start: int, size: int | None = None) -> bytes | None:
        if not self._is_cold or start >= self.store.log_end:  # what is not committed would be
            return now(self.store).record(start, size)
        record: bytes | None = self._read(lambda: self.store.queries.record(start, size))
        return record

    def _read(self, ask: Callable[[], Any]) -> Any:
        """What a read gives that does not wait for the disk but for the worker. One that fails, of which the disk is
        the reason, is done again, and nothing is wrong with it then."""
        while True:
            failed = self.disk.reads_failed
            found = self._read_once(ask)
            if not isinstance(found, Failure):
                return found
            if found.check(StoreDamaged) is None or self.disk.reads_failed == failed:
                found.raiseException()
            self.counts["read failed"] += 1
            if self.disk.has_bad_pages:
                raise PageUnreadable

    def _read_once(self, ask: Callable[[], Any]) -> Any:
        found: list[Any] = []
        maybeDeferred(lambda: ensureDeferred(_of(ask()))).addBoth(found.append)
        rng = Random(7)
        for _ in range(_DRAIN_STEPS):
            if found:
                return found[0]
            self._work(rng)
        raise Violation("reads come to an end", "it does not fire")

    def _pass(self, time_s: float) -> None:
        clock = self.clock
        passed = time_s - max(clock.rightNow, self.high_s)
        if passed > 0:
            self.model.exposed_s += passed
            self.model.waiting_s += passed if self.worker.is_idle else 0
        clock.rightNow = time_s
        try:
            clock.advance(0)
        finally:
            self._note_syncs()
        if self.disk.is_off:
            raise Ended

    def _work(self, rng: Random) -> None:
        if len(self.worker.jobs) > 1:
            self.counts["jobs of the worker overlapped"] += 1
        try:
            self.worker.step(rng)
        finally:
            self._note_syncs()
        if self.disk.is_off:
            raise Ended

    def _note_syncs(self) -> None:
        self.retention.follow()
        self.model.commit(self.store.log_end)
        if self.disk.syncs_failed > self.counts["sync failed"]:
            self.counts["sync failed"] = self.disk.syncs_failed
            self._has_failed_sync = True
            self.model.unsynced_may_go = True

    def _get(self, topic: str, queue_id: int, offset: int, count: int) -> int:
        """Get and compare; returns the next offset."""
        entries = self.model.queues[topic, queue_id]
        end = self.store.max_offset(topic, queue_id)  # after which more may be dispatched
        if self._is_cold:
            result = self._read(lambda: self.store.get(topic, queue_id, offset, count))
        else:
            result = now(self.store).get(topic, queue_id, offset, count)
        where = f"{topic} {queue_id} from {offset} ({result.status.name})"
        data = b"".join(bytes(piece) for piece in result.pieces)
        served = entries[offset : result.next_offset]
        if offset < end and not any(entry.is_rotten or entry.is_gone_from((topic, queue_id)) for entry in served):
            require(result.count > 0, "nothing lost", f"{where}: nothing is got")
        at = count = 0
        for entry in served:  # what rotted is served from memory until the disk is read again, or not at all
            is_seen = entry.is_committed or entry.is_gone_from((topic, queue_id))
            require(is_seen, "readers see only what is committed", f"{where}: {entry.start}")
            if data[at : at + len(entry.record)] == entry.record:
                at += len(entry.record)
                count += 1
            else:
                what = f"{where} to {result.next_offset}: not the bytes of {entry.queue_offset}"
                require(entry.is_rotten or entry.is_gone_from((topic, queue_id)), "no record altered", what)
        require(at == len(data), "no record altered", f"{where}: other bytes than were appended")
        require(result.count == count, "no record altered", f"{where}: {result.count} for {count}")
        return result.next_offset

    def _stop(self, seed: int) -> bool:
        """Stop the store; returns whether it will not have to recover."""
        rng = Random(seed)
        stopped: list[None] = []
        self.worker.hangs = False
        done: Deferred[None] = self.store.stop()
        done.addCallback(stopped.append)
        for number in range(_DRAIN_STEPS):
            if stopped:
                break
            if self.worker.jobs:
                self._work(rng)
            elif number < _DRAIN_STEPS // 2:
                self._pass(self.clock.rightNow + 0.1)
            else:  # what shifted with the clock is due some time
                self._pass(max(self.clock.rightNow, self.high_s) + 0.1)
        require(bool(stopped), "stop comes to an end", "it does not fire")
        if self.linux_aio is not None:
            self.linux_aio.stop()
        self.worker.end()
        if self.disk.is_off:
            raise Ended
        self._note_syncs()
        is_clean = not self.disk.exists(os.path.join(ROOT, "abort"))
        self.counts["clean stop" if is_clean else "stop that was not clean"] += 1
        log = self.store._commit_log
        require(
            is_clean or self.disk.syncs_failed > 0 or self.disk.refusals > 0 or bool(log.why_refused),
            "stop is clean", "nothing failed, yet the store will recover at the next start",
        )  # fmt: skip
        if is_clean:
            self.model.stopped_at = {queue: len(entries) for queue, entries in self.model.queues.items()}
        return is_clean

    def _do_spoil(self, part: str, kind: str, end: str, seed: int) -> None:
        """The process or the machine ends, and something that the store has built is not as it was."""
        rng = Random(seed)
        if end == "stop":
            end = "stop" if self._stop(seed) else "kill"
            for entry in self.model.entries:
                entry.is_durable |= end == "stop"
        self.disk = self.disk.crashed(rng) if end == "power" else self.disk.killed(rng)
        path = spoil.spoil(self.disk, os.path.join(ROOT, part), kind, rng)
        if path:
            self.counts[f"{kind} in {part} after {end}"] += 1
            if kind in ("zeros", "garbage"):
                self.model.spoilt[path] = self.disk.content(path)
            self.model.caches_lost |= part == "consumequeue"
            # A lost file is noticed by the messages of which it had all keys.
            has_whole = self.options["index_entries"] >= 30
            self.model.keys_lost |= part == "index" and (kind in ("zeros", "garbage") or not has_whole)
            self._note_checkpoint()
        self._reopen(end, seed)

    def _note_checkpoint(self) -> None:
        path = f"{ROOT}/checkpoint"
        self._checkpoint_before = self.disk.content(path) if self.disk.find(path) else b""

    def _read_beside_bad_pages(self) -> None:
        """What is on a page that cannot be read is not got; when the page can be read, it is."""
        for topic, queue_id in sorted(self.model.queues):
            low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
            for offset in range(low, high):
                get = partial(self.store.get, topic, queue_id, offset, 1)
                found = self._read_once(get)
                if isinstance(found, Failure):
                    found.trap(StoreDamaged)
                    self.counts["read of a bad page failed"] += 1
        self.disk.mend_pages()

    def _check_table(self, end: str) -> None:
        for _ in range(_READS_MAX):
            failed = self.disk.reads_failed
            try:
                self.table.check(end)
            except OSError:  # of the broker that would be a refusal to start
                if self.disk.reads_failed == failed:
                    raise
            else:
                return

    def _do_lift_short(self) -> None:
        self.disk.faults.refused, self.disk.faults.descriptors_max = {}, None
        if self._shortage is not None:
            self._shortage.end_s = self.model.exposed_s
            self._shortage = None

    def _heal(self) -> None:
        self._do_lift_short()
        self.worker.hangs = False
        self.disk.calls.aio.faults.clear()
        self.disk.mend_pages()
        self.disk.faults = DiskFaults(parts="parts" in self.options.get("extras", ()))

    def _written_file(self, path: str) -> None:
        if os.path.basename(path) == "checkpoint":
            data = self.disk.content(path)
            checkpoint = decode_checkpoint(data)
            before = decode_checkpoint(self._checkpoint_before)
            if coverage.says_no_more(checkpoint, before):  # a start has it on the disk before it looks for what is lost
                return
            self._checkpoint_before = b""
            problem = coverage.checkpoint_is_true(self.disk, ROOT, self.options, checkpoint, self.model)
            if problem:
                self.violations.append(Violation("checkpoint covers what is durable", problem))

    def _check_recovered(self, end: str) -> None:
        """What is there is what was appended, but for a tail that might be lost."""
        model, store = self.model, self.store
        self.retention.check_recovered()
        lost = 0
        while model.entries and not self._is_there(model.entries[-1]):
            entry = model.entries[-1]
            exposed = model.exposed_s - entry.exposed_s
            what = f"after {end}: {entry.queue} {entry.queue_offset} at {entry.start}, "
            what += f"durable: {entry.is_durable}, exposed for {exposed:.3f} s"
            require(model.may_lose(entry, end), "nothing acknowledged lost", what)
            if entry.is_rotten and entry.end <= store.log_end:
                break
            model.give_up(entry)
            lost += 1
            self.counts[f"uncommitted tail lost at a {end}"] += not entry.is_committed
        for entry in model.entries:
            if not entry.is_rotten:
                require(self._is_there(entry), "what is lost is a tail", f"{entry.start} is gone, later ones are there")
        if lost:
            self.counts["tail cut"] += 1
        model.forget_numbers_above(store.log_end)
        if store.corrupt_ranges:
            self.counts["damage found"] += 1
            require(model.has_rot, "damage is damage", f"nothing rotted, yet: {store.corrupt_ranges[0]}")
        # Of what rotted before a checkpoint had its time nobody knows that.
        model.last_ms = next((entry.store_ms for entry in reversed(model.entries) if not entry.is_rotten), 0)
        model.removals.clear()
        self._adopt_in_flight()
        segment = self.options["segment_bytes"]
        next_segment = -(-model.end // segment) * segment
        require(
            store.log_end in (model.end, next_segment) or model.has_rot,
            "no record invented", f"the log ends at {store.log_end}, what was appended at {model.end}",
        )  # fmt: skip
        if end in ("kill", "power") and not model.has_rot:
            self._check_nothing_above_the_end()
        # What survived this end is what the next one finds; a process that starts has the whole interval.
        model.sync_spans = [span for span in model.sync_spans if span is self._shortage]
        for entry in model.entries:
            entry.is_committed = True
            entry.exposed_s = max(entry.exposed_s, model.exposed_s) if end != "power" else entry.exposed_s
            if end == "power":
                entry.is_durable = True
        self.check_queues()

    def _check_nothing_above_the_end(self) -> None:
        """What stood above the end may one day be taken for what follows it: it is not there any more, nor would be
        after another crash."""
        segment = self.options["segment_bytes"]
        base, at = divmod(self.store.log_end, segment)
        path = f"{LOG}/{base * segment:020d}"
        if self.disk.exists(path):
            inode = self.disk.inode(path)
            for image in (inode.image(), inode.durable):
                what = f"{path} from {at} on"
                require(not image[at:].strip(b"\0"), "nothing above the end of the log", what)

    def _adopt_in_flight(self) -> None:
        """An append that was cut short may have come to the log in part."""
        model = self.model
        for message in model.in_flight:
            record = self._read_record(model.end) if self.store.log_end > model.end else None
            if record is None:
                break
            check_is_of(message, record)
            decoded = decode_record(record)
            at_s = model.exposed_s, model.waiting_s
            model.add(Entry(message, record, model.end, decoded.queue_offset, decoded.store_timestamp, *at_s))
            self.counts["part of an append found"] += 1
        model.in_flight = []

    def _is_there(self, entry: Entry) -> bool:
        return self._read_record(entry.start, len(entry.record)) == entry.record

    def _do_advance(self, ms: int, share: float, seed: int) -> None:
        rng = Random(seed)
        clock = self.clock
        until = clock.rightNow + ms / 1000
        while True:
            while rng.random() < share and self.worker.jobs:
                self._work(rng)
            due = min([until, *(call.getTime() for call in clock.calls)])
            self._pass(max(clock.rightNow, due))
            if not self.model.unsynced_may_go and not self.store._commit_log.why_refused:
                self.model.check_exposure(self.store.flushed)
            if due >= until:
                return

    def wait_until(self, is_done: Callable[[], bool], ms: int) -> bool:
        """Let time pass until something is, within bounds; whether it is."""
        rng = Random(6)
        for _ in range(60):
            if is_done():
                return True
            self._do_advance(ms, 0.9, rng.getrandbits(30))
        return is_done()

    def check_queues(self) -> None:
        """All that was appended can be got."""
        self.store.dispatch_now()
        for (topic, queue_id), entries in sorted(self.model.queues.items()):
            count = self.store.max_offset(topic, queue_id)
            if self._is_removed(topic, queue_id, entries):
                continue
            allowed = self.model.next_offsets((topic, queue_id))
            require(count in allowed, "queues hold all", f"{topic} {queue_id} ends at {count}, not in {allowed}")
            if count > len(entries):
                self.model.numbered[topic, queue_id] = count
            del entries[count:]
            offset = 0
            while offset < count:
                following = self._get(topic, queue_id, offset, 32)
                require(following > offset, "gets get on", f"{topic} {queue_id} stays at {offset}")
                offset = following

    def _is_removed(self, topic: str, queue_id: int, entries: list[Entry]) -> bool:
        """Whether a queue was removed, and has had no message since. Raises Violation where it is back."""
        if not self.store.max_offset(topic, queue_id) or self.store.bounds(topic, queue_id) is None:
            return bool(entries) and all((topic, queue_id) in entry.removed_from for entry in entries)
        low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        below = self.model.removed_below.get((topic, queue_id), 0)
        what = f"{topic} {queue_id} begins at {low} of {high}, and was removed below {below}"
        require(low >= below, "what was removed stays removed", what)
        return low == high and all((topic, queue_id) in entry.removed_from for entry in entries)


def check_is_of(message: NewMessage, record: bytes) -> None:
    decoded = decode_record(record)
    same = (
        decoded.topic == message[0].decode()
        and decoded.queue_id == message[1]
        and decoded.flag == message[2]
        and decoded.body == message[8]
        and (record.endswith(message[9]) or (DISPATCH_MARK in message[9] and message[9] + b"\x02" in record))
    )
    require(same, "no record invented", f"another record at {decoded.physical_offset} than was appended")
