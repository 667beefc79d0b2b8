"""A store on the simulated disk, beside the model of what it must hold; steps are done to both."""

from __future__ import annotations

import os
from functools import partial
from random import Random
from typing import Any

from twisted.python.failure import Failure

from mqbroker.errors import FlushTimedOut, StoreBusy, StoreUnwritable
from mqbroker.store.checkpoint import decode_checkpoint
from mqbroker.store.tags_codes import TagsCodes
from mqbroker.wire.codes import SCHEDULE_TOPIC, SysFlag
from mqbroker.wire.names import LMQ_PREFIX, java_hash
from mqbroker.wire.record import BLANK_BYTES_MIN, MAGIC, NewMessage
from tests.store.harness import BORN, HOST, now
from tests.store.simulation import coverage, hostile, steps
from tests.store.simulation.disk import UnallocatedStore
from tests.store.simulation.life import LOG, ROOT, V6, Life, PageUnreadable, check_is_of
from tests.store.simulation.model import Entry, SyncSpan, Violation, require
from tests.store.simulation.steps import Step
from tests.store.simulation.threads import Ended

TOPICS = ("A", "B", *hostile.TOPICS)
_OF_ITS_TAG = TagsCodes(()).of_its_tag
_PATTERN = bytes(range(1, 256)) * 70


class World(Life):
    """Does steps, and raises Violation where a promise does not hold."""

    def do(self, step: Step) -> None:
        """Do a step. Raises Violation."""
        try:
            getattr(self, f"_do_{step[0]}")(*step[1:])
        except Ended:
            pass
        except StoreBusy:  # who reads is told to come again
            if not self.disk.is_short:
                raise
            self.counts["reads refused for want of descriptors"] += 1
            if step[0] in ("get", "query", "time"):
                self._do_lift_short()
                self.do(step)
        except PageUnreadable:
            self.counts["read of a bad page failed"] += 1
        except UnallocatedStore as error:
            raise Violation("no store where no block is", str(error)) from error
        self._check_step()
        while self.disk.is_off:
            self.counts["end in the middle of an operation"] += 1
            self.end(*self._end)
            self._check_step()

    def _check_step(self) -> None:
        for hazard in self.disk.hazards:
            raise Violation("no store where no block is", hazard)
        if self.violations:
            raise self.violations[0]
        try:
            self.disk.check_all_stores()
        except UnallocatedStore as error:
            raise Violation("no store where no block is", str(error)) from error

    # Steps

    def _messages(self, batch: list[list[int]]) -> list[NewMessage]:
        start, segment = self.model.end, self.options["segment_bytes"]
        store_host_bytes = len(V6 if self.options["ipv6_store"] else HOST)
        found = []
        for topic, queue_id, size, kind, named, hostility in ([*row, 0, 0][:6] for row in batch):
            message = self._message(topic, queue_id, size if size >= 0 else 1, kind, named)
            if size < 0:
                room = segment - BLANK_BYTES_MIN - hostile.size_of(message, store_host_bytes)
                longer = min(room, room - start % segment + 2 + size)  # a longer one is in no segment
                if longer > 0:
                    message = (*message[:8], message[8] + _PATTERN[:longer], *message[9:])
                    self.counts["record that fills its segment"] += size == -2
            for _ in range(2):  # what does not fit begins the next segment
                made = message
                if hostility:
                    made = hostile.make_hostile(hostility, message, start, len(message[5]) + store_host_bytes)
                end = start + hostile.size_of(made, store_host_bytes)
                if end - start // segment * segment + BLANK_BYTES_MIN <= segment:
                    break
                start = -(-start // segment) * segment
            found.append(made)
            start = end
            self.counts["hostile message"] += hostility > 0
        return found

    def _message(self, topic: int, queue_id: int, size: int, kind: int, named: int) -> NewMessage:
        self._written += 1
        number = self._written
        body = b"%d:" % number + _PATTERN[number % 251 : number % 251 + size] if size else b""
        pairs = [f"UNIQ_KEY\x01u{number}", f"KEYS\x01k{number % 5} all", f"TAGS\x01t{number % 3}"]
        if kind == steps.KEYLESS:
            del pairs[:2]
        if named:
            names = [name for bit, name in enumerate(steps.NAMES) if named & 1 << bit]
            pairs.append(f"INNER_MULTI_DISPATCH\x01{','.join(names)}")
        name, sys_flag = TOPICS[topic], 0
        if kind == steps.DELAYED:
            name = SCHEDULE_TOPIC
            pairs.append(f"DELAY\x01{queue_id + 1}")
        elif kind in (steps.HALF, steps.COMMIT, steps.ROLLBACK):
            sys_flag = {
                steps.HALF: SysFlag.TRANSACTION_PREPARED,
                steps.COMMIT: SysFlag.TRANSACTION_COMMIT,
                steps.ROLLBACK: SysFlag.TRANSACTION_ROLLBACK,
            }[kind]
        host = V6 if kind == steps.IPV6 else BORN
        return (
            name.encode(), queue_id, number, sys_flag, 1795255515190, host, 0, 0, body, "\x02".join(pairs).encode(),
        )  # fmt: skip

    def _do_append(self, waits: bool, batch: list[list[int]]) -> None:
        model = self.model
        messages = self._messages(batch)
        model.in_flight = messages
        before = self.store.log_end
        try:
            rows = self.store.append(messages)
        except (StoreUnwritable, StoreBusy) as error:
            is_busy = isinstance(error, StoreBusy) and self.settings().fast_fail_if_no_buffer_in_store_pool
            require(
                is_busy or bool(self.store._commit_log.why_refused),
                "refusals have a reason",
                "append refused, yet the store says it is writable",
            )
            require(self.store.log_end == before, "all or none", "a refused batch left something in the log")
            self.counts["append refused"] += 1
            if self.disk.refusals:
                self.counts["disk full refused"] += 1
            model.in_flight = []
            return
        model.in_flight = []
        for message, row in zip(messages, rows, strict=True):
            self._add(message, *row)
        if waits:
            self._wait(rows[-1][0] + rows[-1][2])

    def _add(self, message: NewMessage, start: int, queue_offset: int, size: int, store_ms: int) -> None:
        model = self.model
        segment = self.options["segment_bytes"]
        next_segment = -(-model.end // segment) * segment
        require(
            start in (model.end, next_segment) or model.has_rot,
            "records follow one another",
            f"{start} after {model.end}",
        )
        if start % segment == 0 and start:
            self.counts["segment roll"] += 1
        require(store_ms >= model.last_ms, "store times in order", f"{store_ms} after {model.last_ms}")
        record = self._just_appended(start, size)
        check_is_of(message, record)
        is_committed = start + size <= self.store.log_end
        entry = Entry(
            message, record, start, queue_offset, store_ms, model.exposed_s, model.waiting_s, is_committed=is_committed
        )
        for queue, offset in entry.places:
            allowed = model.next_offsets(queue)
            what = f"{queue} gave {offset} where {allowed} is due"
            require(offset in allowed, "queue offsets dense and never given twice", what)
            del model.queues.get(queue, [])[offset:]
            if offset < model.removed_below.get(queue, 0):  # those with higher numbers aged, and nobody knows them
                model.removed_below[queue] = offset
        model.add(entry)

    def _just_appended(self, start: int, size: int) -> bytes:
        record = self._read_record(start, size)
        if start + size <= self.store.log_end:
            require(record is not None, "no record altered", f"nothing to be read at {start} just after an append")
            assert record is not None
            return record
        require(record is None, "readers see only what is committed", f"{start} is not, and is read")
        transient = self.store._transient
        assert transient is not None
        sheet = next(sheet for sheet in reversed(transient._sheets) if sheet.base <= start)
        buffer = sheet.buffer if sheet.buffer is not None else sheet.file.buffer
        return buffer[start - sheet.base : start - sheet.base + size]

    def _wait(self, end: int) -> None:
        life = self._life

        def durable(_: None) -> None:
            if self._life != life:
                return
            self.counts["acknowledged as durable"] += 1
            fresh = [entry for entry in self.model.acknowledge(end) if entry.start >= self.model.removed]
            problem = coverage.log_is_durable(self.disk, LOG, self.options["segment_bytes"], fresh)
            if problem:
                self.violations.append(Violation("acknowledged is durable", problem))

        def failed(failure: Any) -> None:
            self.counts[f"wait failed: {failure.type.__name__}"] += 1
            if failure.check(StoreUnwritable, FlushTimedOut, Ended) is None:
                self.violations.append(Violation("waits end as promised", repr(failure.value)))
            if failure.check(StoreUnwritable) and self._life == life:
                self.model.unsynced_may_go = True

        self.store.durable(end).addCallbacks(durable, failed)

    def _do_work(self, count: int, seed: int) -> None:
        rng = Random(seed)
        for _ in range(count):
            self._work(rng)

    def _do_jump(self, seconds: float) -> None:
        # Timers shift, as with a reactor that goes by the wall clock: what is due is due that much later.
        self.counts["clock jump"] += 1
        if seconds < 0:
            self.high_s = max(self.high_s, self.clock.rightNow)
        self.clock.rightNow += seconds

    def _do_age(self, hours: float, ms: int, share: float, seed: int) -> None:
        self.clock.rightNow += hours * 3600
        self._do_advance(ms, share, seed)

    def _do_get(self, seed: int) -> None:
        rng = Random(seed)
        queues = sorted(self.model.queues)
        if not queues:
            return
        topic, queue_id = rng.choice(queues)
        low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        offset = rng.randint(low, max(low, high))
        self._get(topic, queue_id, offset, rng.choice([1, 3, 32]))
        if topic != SCHEDULE_TOPIC and low <= offset < high:
            self._get_tagged(topic, queue_id, offset, seed % 3)

    def _get_tagged(self, topic: str, queue_id: int, offset: int, tag: int) -> None:
        """Get messages with a tag and compare: whatever is wrong with what was built from the log, none is missed."""
        wanted = frozenset([java_hash(f"t{tag}")])
        ask = partial(self.store.get, topic, queue_id, offset, 32, None, wanted)
        result = self._read(ask) if self._is_cold else now(self.store).get(topic, queue_id, offset, 32, None, wanted)
        where = f"{topic} {queue_id} from {offset} with t{tag} ({result.status.name})"
        data = b"".join(bytes(piece) for piece in result.pieces)
        at = 0
        for entry in self.model.queues[topic, queue_id][offset : result.next_offset]:
            is_unsure = entry.is_rotten or entry.is_gone_from((topic, queue_id)) or entry.queue[0] == SCHEDULE_TOPIC
            if (is_unsure or _OF_ITS_TAG(entry.message[9]) in wanted) and data.startswith(entry.record, at):
                at += len(entry.record)
            else:
                is_missed = not is_unsure and _OF_ITS_TAG(entry.message[9]) in wanted
                require(not is_missed, "nothing lost", f"{where}: {entry.queue_offset} is not got")
        require(at == len(data), "no record altered", f"{where}: others than are wanted")

    def _do_query(self, seed: int) -> None:
        rng = Random(seed)
        key = rng.choice(["all", f"k{rng.randint(0, 4)}", f"u{rng.randint(1, self._written + 1)}"])
        self._query(rng.choice(TOPICS), key)

    def _query(self, topic: str, key: str) -> None:
        if not self.options["index"]:
            return
        if self._is_cold:
            found = self._read(lambda: self.store.query(topic, key, 100_000, 0, 2**62)).records
        else:
            found = now(self.store).query(topic, key, 100_000, 0, 2**62)
        expected = [
            entry
            for entry in reversed(self.model.entries)
            if entry.queue[0] == topic and entry.is_indexed and key in entry.keys and entry.is_committed
        ]
        indexed = self.store.stats.indexed
        records = [entry.record for entry in expected]
        for record in found:
            require(record in records, "no record altered", f"query {topic} {key}: a record nobody appended")
        complete = [entry.record for entry in expected if entry.end <= indexed and not entry.is_rotten]
        missing = [record for record in complete if record not in found]
        require(
            not missing or self.model.keys_lost,
            "index holds all", f"query {topic} {key}: {len(missing)} of {len(complete)} missing",
        )  # fmt: skip

    def _do_time(self, seed: int) -> None:
        rng = Random(seed)
        queues = sorted(self.model.queues)
        if not queues or self.model.has_rot:
            return
        topic, queue_id = rng.choice(queues)
        entries = self.model.queues[topic, queue_id][: self.store.max_offset(topic, queue_id)]
        entries_live = [entry for entry in entries if not entry.is_gone_from((topic, queue_id))]
        if entries_live:
            wanted = rng.choice(entries_live).store_ms
            if self._is_cold:
                found = self._read(lambda: self.store.queries.offset_by_time(topic, queue_id, wanted))
            else:
                found = now(self.store).offset_by_time(topic, queue_id, wanted)
            queue = topic, queue_id
            late = (n for n, entry in enumerate(entries) if entry.store_ms >= wanted and not entry.is_gone_from(queue))
            first = next(late)
            ok = found == first
            if 0 <= found < first:
                # It may have been removed, or not: it is an answer where the queue still has it.
                low = max(self.store.min_offset(topic, queue_id), self.model.removed_below.get(queue, 0))
                ok = found >= low and not entries[found].is_gone and entries[found].store_ms >= wanted
            require(ok, "offset by time", f"{topic} {queue_id} at {wanted}: {found}")

    def _do_stop(self, then_power: bool, seed: int) -> None:
        is_clean = self._stop(seed)
        rng = Random(seed)
        end = "stop"
        if is_clean:
            for entry in self.model.entries:
                entry.is_durable = True
        if then_power:
            self.disk = self.disk.crashed(rng)
            self.counts["power cut after a stop"] += 1
            end = "power"
        else:
            self.disk = self.disk.killed(rng)
        self._reopen(end if is_clean or then_power else "kill", seed)

    def _do_kill(self, seed: int) -> None:
        self.end("kill", seed)

    def _do_power(self, seed: int) -> None:
        self.end("power", seed)

    def _do_remove(self, topic: str, end_in: int, end: str, seed: int) -> None:
        """Remove a topic; the process or the machine may end meanwhile."""
        counts = self.model.begin_removal(topic)
        life = self._life

        def removed(found: Any) -> None:
            if self._life != life:
                return
            is_done = not isinstance(found, Failure)
            self.counts["topic removed" if is_done else "removal refused"] += 1
            if is_done or found.check(OSError):
                self.model.end_removal(topic, counts, is_done)
            elif not found.check(Ended):
                self.violations.append(Violation("removals end as promised", repr(found.value)))

        if end_in:
            self._do_end_in(end_in, end, seed)
        self.store.remove_topics({topic}).addBoth(removed)

    def _do_lose(self, what: list[str], seed: int, operations: int = 0, end: str = "kill") -> None:
        """Someone deletes caches of the log while the store is stopped; the start after that may be cut short."""
        self._stop(seed)
        self.disk.faults.fail_sync_in = self.disk.faults.end_in = None  # it is deleted whole, and not by the store
        self._do_lift_short()
        if "consumequeue" in what:
            self.model.caches_lost = True
            light = [entries for (name, _), entries in self.model.queues.items() if name.startswith(LMQ_PREFIX)]
            self.counts["LMQ queue rebuilt"] += any(entries and not entries[-1].is_gone for entries in light)
        for name in what:
            self.disk.remove_tree(os.path.join(ROOT, name))
            self.disk.sync_directory(ROOT)
            self.counts[f"{name} deleted"] += 1
        self._note_checkpoint()
        self.disk = self.disk.killed(Random(seed))
        if operations:
            self._do_end_in(operations, end, seed)
        self._reopen("kill", seed)

    def _do_drop(self, fails: int, has_bad: bool, seed: int) -> None:
        """Segments from before the start leave memory; so many reads fail then, or all of one page for a while."""
        self._do_lift_short()
        rng = Random(seed)
        segment = self.options["segment_bytes"]
        old = [inode for path, inode in self.disk.files(LOG) if int(os.path.basename(path)) + segment <= self._old_end]
        for inode in old:
            inode.drop(rng, rng.random())
        earliest_ms, now_ms = self.store.stats.earliest_ms, 1000 * max(self.clock.rightNow, self.high_s)
        require(-1 <= earliest_ms <= max(now_ms, self.model.last_ms), "no unread page is looked at", f"{earliest_ms}")
        unread = [(inode, number) for inode in old for number in sorted(inode.unread)]
        if unread and has_bad:
            inode, number = rng.choice(unread)
            self.disk.make_bad(inode, number)
            self._read_beside_bad_pages()
        self.disk.faults.fail_read_in, self.disk.faults.reads_to_fail = 1, fails
        for topic, queue_id in sorted(self.model.queues):
            low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
            for offset in range(low, high):
                self._get(topic, queue_id, offset, 1)
        self.disk.faults.fail_read_in = None

    def _do_fail_read(self, reads: int, times: int) -> None:
        self.disk.faults.fail_read_in, self.disk.faults.reads_to_fail = reads, times

    def _do_bad_page(self, part: str, end: str, seed: int) -> None:
        """The process or the machine ends, and there is a page that the disk cannot read."""
        rng = Random(seed)
        self.disk = self.disk.crashed(rng) if end == "power" else self.disk.killed(rng)
        found = [inode for _, inode in self.disk.files(os.path.join(ROOT, part)) if any(inode.blocks)]
        if found and not self.model.has_rot:  # behind what rotted such a page is passed over for good
            inode = rng.choice(found)
            blocks = [number for number, has_block in enumerate(inode.blocks) if has_block]
            self.disk.make_bad(inode, rng.choice(blocks))
        self._reopen(end, seed)

    def _do_save(self, size: int) -> None:
        self.table.save(size)

    def _do_rot_table(self, end: str, seed: int) -> None:
        rng = Random(seed)
        self.disk = self.disk.crashed(rng) if end == "power" else self.disk.killed(rng)
        self.table.rot(rng)
        self._reopen(end, seed)

    def _do_end_in(self, operations: int, end: str, seed: int) -> None:
        self._end = (end, seed)
        self.disk.faults.end_in = operations

    def _do_end_deleting(self, operations: int, end: str, seed: int) -> None:
        self._end = (end, seed)
        self.retention.end_in = operations

    def _do_fail_deleting(self) -> None:
        self.retention.fails = True

    def _do_eio(self, syncs: int, forgets: bool, seed: int) -> None:
        self.disk.faults.fail_sync_in = syncs
        self.disk.faults.forgets = forgets
        self.disk.faults.sync_rng = Random(seed)

    def _do_queue(self, what: str) -> None:
        """A call of the kernel's queue goes wrong the next time."""
        self.disk.calls.aio.faults.add(what)

    def _do_hang(self, hangs: bool) -> None:
        """Syncs that the kernel has do not end for a while."""
        self.worker.hangs = hangs
        self.counts["syncs that hang"] += hangs

    def _do_full(self, room_bytes: int) -> None:
        self.disk.faults.room_bytes = room_bytes

    def _do_lift(self) -> None:
        self.disk.faults.room_bytes = None

    def _do_short(self, what: str, share: float, seed: int) -> None:
        """From now on calls are refused, all of them or a share."""
        self._do_lift_short()
        faults = self.disk.faults
        faults.refused, faults.refused_share, faults.refuse_rng = steps.SHORTAGES[what], share, Random(seed)
        if what == steps.FEW:
            faults.descriptors_max = len(self.disk.calls.descriptors) + Random(seed).randint(0, 2)
        self.counts[f"short of {what}"] += 1
        self._shortage = SyncSpan(self.model.exposed_s, is_last_place=True)  # nothing can be synced that is not open
        self.model.sync_spans.append(self._shortage)

    def _do_rot(self, seed: int) -> None:
        """Rot records that the durable checkpoint covers: nobody can tell others from what a power cut tore."""
        rng = Random(seed)
        data = self.disk.durable_bytes(os.path.join(ROOT, "checkpoint"))
        covered = decode_checkpoint(data or b"").log_offset or 0
        entries = [entry for entry in self.model.entries if entry.end <= covered and not entry.is_rotten]
        entries = [
            entry for entry in entries if entry.start >= self.model.removed and hostile.FORGED not in entry.record
        ]
        if not entries:
            return
        at = rng.randrange(len(entries))
        kind = rng.choice(["body", "magic", "size", "zeros"])
        self.counts[f"rot of {kind}"] += 1
        self.model.has_rot = True
        for entry in entries[at : at + (rng.randint(1, 3) if kind == "zeros" else 1)]:
            entry.is_rotten = True
            self._rot(entry, kind, rng)

    def _rot(self, entry: Entry, kind: str, rng: Random) -> None:
        segment = self.options["segment_bytes"]
        path = f"{ROOT}/commitlog/{entry.start // segment * segment:020d}"
        at = entry.start % segment
        body = entry.message[8]
        record = bytearray(entry.record)
        if kind == "zeros":
            record[:] = bytes(len(record))
        elif kind == "body" and body:
            record[record.index(body) + rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        elif kind == "size":
            record[rng.randrange(2)] ^= 1 << rng.randrange(8)
        else:
            record[4 + rng.randrange(4)] ^= 1 << rng.randrange(8)
            if int.from_bytes(record[4:8], "big") == MAGIC:
                record[4] ^= 1
        self.disk.inode(path).rot(at, bytes(record))

    # Checks

    # The end

    def finish(self) -> None:
        """Heal the disk; then everything works again, is whole, and equals a rebuild. Raises Violation."""
        self._heal()
        self.retention.forget_faults()
        self._settle()
        self._pass(max(self.clock.rightNow, self.high_s))
        self._settle()
        # An error that only the sync of zeros has met is reported to the log's next sync.
        self._do_append(True, [[0, 0, 10, steps.PLAIN]])
        self._settle()
        goes_on = "goes on" in self.options.get("extras", ())
        if self.store._commit_log.why_refused or (self._has_failed_sync and not goes_on):
            self._do_stop(False, 1)
        for _ in range(2):
            self._do_append(True, [[0, 0, 10, steps.PLAIN], [1, 1, 10, steps.PLAIN]])
            self.table.retry()
            self._settle()
            self._check_step()
            last = self.model.entries[-1]
            require(last.is_durable, "works again once the disk does", "the last message was not acknowledged")
        self.table.check_saved()
        if goes_on:
            is_saved = self.wait_until(self._is_saved, self.options["queue_flush_ms"])
            require(is_saved, "works again once the disk does", "the checkpoint does not advance")
            self.counts["went on after faults"] += 1
        self._check_all()
        require(self._stop(2), "stop is clean", "after all faults were lifted")
        self._check_step()
        compared = coverage.compare_with_rebuild(self, ROOT)
        self.counts.update(compared)
        self._reopen("stop", 3)
        self._check_all()
        self._stop(4)

    def _settle(self) -> None:
        rng = Random(5)
        for _ in range(60):
            self._do_advance(self.options["flush_ms"], 0.99, rng.getrandbits(30))
            if self._is_settled():
                break

    def _is_settled(self) -> bool:
        stats = self.store.stats
        done = min(stats.flushed, stats.dispatched, stats.indexed if self.options["index"] else stats.dispatched)
        is_committed = not self.model.entries or self.model.entries[-1].is_committed
        return (
            is_committed and done >= stats.log_end and not self.worker.jobs and not self.store._commit_log.why_refused
        )

    def _is_saved(self) -> bool:
        """Whether the checkpoint is at the end of the log."""
        path = f"{ROOT}/checkpoint"
        checkpoint = decode_checkpoint(self.disk.content(path) if self.disk.find(path) else b"")
        return min(checkpoint.log_offset or 0, checkpoint.queues_offset or 0) >= self.store.log_end

    def _check_all(self) -> None:
        self.check_queues()
        for topic in TOPICS:
            for key in ("all", "k1"):
                self._query(topic, key)
        self.retention.check_minimums()
        if self.options["index"]:
            end, indexed = self.store.log_end, self.store.stats.indexed
            require(indexed >= end, "index holds all", f"it is at {indexed} of {end}")
