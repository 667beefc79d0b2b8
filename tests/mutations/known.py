"""Mistakes that message stores have made, ready to be made again: each must turn the tests red."""

from __future__ import annotations

from pathlib import Path

import attrs

SOURCE = Path(__file__).parent.parent.parent / "mqbroker"


@attrs.frozen
class Mutation:
    """Replace `old`, which is in `file` once, by `new`. `tests`: where the mistake must be noticed."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied_to(self, text: str) -> str:
        """The file's text with the mistake in it. Raises ValueError where the place is not found, or not once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} is in {self.file} {text.count(self.old)} times, not once")
        return text.replace(self.old, self.new)


KNOWN = [
    Mutation(
        "acknowledge after a failed fsync",
        "store/flush.py",
        "        self._commit_log.why_stopped = why\n        self._fail_waiting(StoreUnwritable(why))\n",
        "        self._commit_log.why_stopped = why\n"
        "        self._synced(_Sync(self._commit_log.readable_end, 0, 0.0))\n",
        ("tests/store/test_flush.py",),
    ),
    Mutation(
        "go on writing after a failed fsync",
        "store/flush.py",
        "        self._commit_log.why_stopped = why\n        self._fail_waiting",
        "        self._fail_waiting",
        ("tests/store/test_flush.py",),
    ),
    Mutation(
        "acknowledge before the fsync",
        "store/flush.py",
        "        if end <= self.flushed:\n            return succeed(None)\n",
        "        if end <= self._commit_log.readable_end:\n            return succeed(None)\n",
        ("tests/store/test_flush.py",),
    ),
    Mutation(
        "acknowledge what came while the fsync ran",
        "store/flush.py",
        "        self.flushed = sync.end\n",
        "        self.flushed = sync.end = self._commit_log.readable_end\n",
        ("tests/store/test_flush.py",),
    ),
    Mutation(
        "drop the tick that meets a running sync",
        "store/flush.py",
        "        elif len(self._running) < RUNNING_MAX:\n",
        "        elif not self._running:\n",
        ("tests/store/test_flush.py",),
    ),
    Mutation(
        "count a sync before those that began earlier",
        "store/flush.py",
        "        sync.is_done = True\n        self._serve()\n",
        "        self._running.remove(sync)\n        self._synced(sync)\n",
        ("tests/store/test_flush.py",),
    ),
    Mutation(
        "sync only the newest segment at a roll",
        "store/syncs.py",
        "            for file in files:\n                file.sync()\n",
        "            files[-1].sync()\n",
        ("tests/store/test_flush.py",),
    ),
    Mutation(
        "leave the name of a new segment unsynced",
        "store/segment.py",
        "            self._disk.sync_directory(self._directory)\n            self._names_synced = made\n",
        "            self._names_synced = made\n",
        ("tests/store/test_flush.py",),
    ),
    Mutation(
        "map a segment without blocks behind it",
        "store/segment.py",
        "            file.allocate(0, file.size)\n        except OSError:\n            file.close()\n"
        "            self._remove(offset)",
        "            pass\n        except OSError:\n            file.close()\n            self._remove(offset)",
        ("tests/store/test_append.py",),
    ),
    Mutation(
        "truncate consume queues one message too far",
        "store/consumequeue.py",
        "offset + size % BLANK_SIZE <= physical_end",
        "offset + size % BLANK_SIZE < physical_end",
        ("tests/store/test_consumequeue.py",),
    ),
    Mutation(
        "keep one consume queue entry too many",
        "store/consumequeue.py",
        "offset + size % BLANK_SIZE <= physical_end",
        "offset <= physical_end",
        ("tests/store/test_consumequeue.py",),
    ),
    Mutation(
        "cut the log at damage below the durable mark",
        "store/recovery.py",
        "        if offset >= start.durable_end and timestamp >= start.durable_ms:\n",
        "        if True:\n",
        ("tests/store/test_recovery.py",),
    ),
    Mutation(
        "adopt any later segment without a look for old records",
        "store/opening.py",
        "is_clear and len(files) > 0 and not has_bytes(files[0], 0, 64)",
        "is_clear and len(files) > 0",
        ("tests/store/test_recovery.py",),
    ),
    Mutation(
        "clear nothing above the end after a clean stop",
        "store/opening.py",
        "        if not is_clear or has_bytes(active, at, 64):\n",
        "        if not is_clear:\n",
        ("tests/store/test_recovery.py",),
    ),
    Mutation(
        "believe that a clean stop of Java leaves zeros above the end",
        "store/opening.py",
        "is_clean and checkpoint.log_offset == recovered.end",
        "is_clean",
        ("tests/store/test_recovery.py",),
    ),
    Mutation(
        "trust all consume queues of Java as far as one",
        "store/recovery.py",
        "_start_by_time(segments, checkpoint.queues_safe_ms)",
        "_start_by_time(segments, checkpoint.safe_ms)",
        ("tests/store/test_recovery.py",),
    ),
    Mutation(
        "take a torn record for a whole one",
        "store/recovery.py",
        "if start.may_lack_sectors else run\n",
        "if False else run\n",
        ("tests/store/test_torn_records.py",),
    ),
    Mutation(
        "take a whole record for a torn one",
        "store/recovery.py",
        "may_lack_sectors=not is_intact)",
        "may_lack_sectors=True)",
        ("tests/store/test_torn_records.py",),
    ),
    Mutation(
        "acknowledge what recovery would doubt",
        "store/flush.py",
        "            if self._commit_log.doubtful_end > self._noted < end:\n",
        "            if False:\n",
        ("tests/store/test_torn_records.py",),
    ),
    Mutation(
        "store the head of an append first",
        "store/commitlog.py",
        "        parts[0] = first[COMMIT_BYTES:]\n        self._buffer[start + COMMIT_BYTES : stop] = ",
        "        self._buffer[start:stop] = ",
        ("tests/store/test_torn_records.py",),
    ),
    Mutation(
        "overlook a consume queue that a crash took",
        "store/recovery.py",
        "    if start != checkpoint.queues_offset or checkpoint.tally in (None, queues.tally()):\n",
        "    if True:\n",
        ("tests/store/test_lost_queues.py",),
    ),
    Mutation(
        "count messages in queues that the log may lose",
        "store/store_files.py",
        "(tallied[0].queues_offset or 0) <= (now.log_offset or 0)",
        "True",
        ("tests/store/test_lost_queues.py",),
    ),
    Mutation(
        "take what the page cache may have lost for written",
        "store/opening.py",
        'is_intact = is_clean or abort == disk.boot_id() != b""\n',
        "is_intact = True\n",
        ("tests/store/test_recovery.py",),
    ),
    Mutation(
        "take the lock after the recovery",
        "store/message_store.py",
        "    lock = _lock(disk, paths)\n    try:\n        parts = yield from Opening("
        "settings, paths, disk, clock, worker, log_syncs, store_host, lock).steps()\n",
        "    lock = None\n    try:\n        parts = yield from Opening("
        "settings, paths, disk, clock, worker, log_syncs, store_host, lock).steps()\n"
        "        parts.files.lock = lock = _lock(disk, paths)\n",
        ("tests/store/test_lock.py", "tests/store/test_opening.py", "tests/store/test_recovery.py"),
    ),
    Mutation(
        "write the checkpoint before what it covers",
        "store/store_files.py",
        "            outcome = self._sync(files, directories)\n",
        "            self.checkpoint.advance(now)\n            outcome = self._sync(files, directories)\n",
        ("tests/store/test_flush.py",),
    ),
    Mutation(
        "let the checkpoint cover what could not be synced",
        "store/store_files.py",
        "        if not outcome.is_synced:\n            self._syncing.failed(str(outcome.error))\n            return\n",
        "        if not outcome.is_synced:\n            self._syncing.failed(str(outcome.error))\n",
        ("tests/store/test_flush.py",),
    ),
    Mutation(
        "call a stop clean that was not",
        "store/store_files.py",
        "        if self._is_all_synced:\n            self.checkpoint.write(",
        "        if True:\n            self.checkpoint.write(",
        ("tests/store/test_flush.py",),
    ),
    Mutation(
        "sync a consume queue again without storing again what the kernel takes for written",
        "store/store_files.py",
        "                store_again(file, 0, file.size, is_sparse=True)\n",
        "                pass\n",
        ("tests/store/test_flush.py",),
    ),
    Mutation(
        "leave a file behind that cannot be mapped",
        "store/os_disk.py",
        "            return OsMappedFile(path, size, fd, keep_open)\n        except BaseException:\n"
        "            os.unlink(path)\n",
        "            return OsMappedFile(path, size, fd, keep_open)\n        except BaseException:\n",
        ("tests/store/test_index.py",),
    ),
    Mutation(
        "leave the names of deleted index files unsynced",
        "store/index.py",
        "os.path.join(self._directory, name))\n                self._has_new_name = True\n",
        "os.path.join(self._directory, name))\n",
        ("tests/store/test_index.py",),
    ),
    Mutation(
        "leave the directory unsynced after a table's rename",
        "store/jsonfile.py",
        "        os.fsync(fd)\n    finally:\n",
        "        pass\n    finally:\n",
        ("tests/store/test_jsonfile.py",),
    ),
    Mutation(
        "give up syncing consume queues when it failed once",
        "store/store_files.py",
        "        self._syncing.worked()\n        self._unsynced.clear()\n",
        "        if self._syncing.is_on:\n            return\n        self._unsynced.clear()\n",
        ("tests/store/test_flush.py",),
    ),
    Mutation(
        "believe a checkpoint while consume queues are rebuilt",
        "store/checkpoint_file.py",
        "        if known.queues_offset is not None and known.queues_offset > offset:\n",
        "        if False:\n",
        ("tests/store/test_opening.py",),
    ),
    Mutation(
        "delete a table before the new one is renamed over it",
        "store/jsonfile.py",
        "    os.replace(temporary, path)\n",
        "    if os.path.exists(path):\n        os.unlink(path)\n    os.replace(temporary, path)\n",
        ("tests/store/test_jsonfile.py",),
    ),
    Mutation(
        "let store timestamps go back with the clock",
        "store/commitlog.py",
        "        if now < self.last_timestamp_ms:\n            now = self.last_timestamp_ms\n",
        "",
        ("tests/store/test_append.py",),
    ),
    Mutation(
        "leave queue offsets given out by a batch that was refused",
        "store/commitlog.py",
        "            _take_back(messages, queues)\n            raise ValueError(",
        "            raise ValueError(",
        ("tests/store/test_append.py",),
    ),
    Mutation(
        "show readers what is not committed",
        "store/commitlog.py",
        "return self.end if self._transient is None else self._transient.committed\n",
        "return self.end\n",
        ("tests/store/test_transient.py",),
    ),
    Mutation(
        "delete segments that consume queues on the disk do not cover",
        "store/store_files.py",
        "        return min(self.checkpoint.known.log_offset or 0, self.checkpoint.known.queues_offset or 0)\n",
        "        return self.checkpoint.known.log_offset or 0\n",
        ("tests/store/test_retention.py",),
    ),
    Mutation(
        "go on serving a log from before its first file",
        "store/deletion.py",
        "        gone = self._commit_log.drop_first()\n        assert gone is segment\n",
        "        gone = segment\n",
        ("tests/store/test_retention.py",),
    ),
    Mutation(
        "delete young messages on a disk that has room",
        "store/retention.py",
        "rules.clean_forcibly and room >= Room.URGENT",
        "rules.clean_forcibly",
        ("tests/store/test_room.py",),
    ),
    Mutation(
        "stay closed after the disk has room again",
        "store/disk_watch.py",
        '            commit_log.why_disk_full = ""\n',
        "            pass\n",
        ("tests/store/test_room.py",),
    ),
    Mutation(
        "number the messages of a topic that is made again from 0",
        "store/consumequeues.py",
        "removed.next_offset if removed is not None else 0",
        "0",
        ("tests/store/test_removal.py",),
    ),
    Mutation(
        "remove a topic without a note",
        "store/removal.py",
        "        await self._note(queues)\n",
        "",
        ("tests/store/test_removal.py",),
    ),
    Mutation(
        "serve a message whose body rotted",
        "store/verifying.py",
        "zlib.crc32(record[BODY_OFFSET_V4:place]) & 0x7FFFFFFF == crc",
        "True",
        ("tests/store/test_damages.py",),
    ),
    Mutation(
        "take a record inside of a message for one",
        "store/hot_records.py",
        "found != physical_offset or ",
        "",
        ("tests/store/test_hot_records.py",),
    ),
    Mutation(
        "store a message of a transaction again that others committed meanwhile",
        "broker/processors/end_transaction.py",
        "        run.has_waited = True\n",
        "",
        ("tests/broker/test_cold.py",),
    ),
    Mutation(
        "serve a message of another queue",
        "store/verifying.py",
        "            and own_offset == queue_offset\n",
        "",
        ("tests/store/test_damages.py",),
    ),
    Mutation(
        "serve what is known to be damaged",
        "store/damages.py",
        "at >= 0 and self._ranges[at].end > start",
        "False",
        ("tests/store/test_damages.py",),
    ),
    Mutation(
        "touch pages that are on the disk",
        "store/closer_look.py",
        "                look.missing.append(Stretch(file, at, size))\n                return True\n",
        "                return True\n",
        ("tests/store/test_cold_reads.py",),
    ),
    Mutation(
        "pass over messages behind a removed one",
        "store/closer_look.py",
        "if 0 <= physical_offset < log.min_offset:",
        "if True:",
        ("tests/store/test_damages.py",),
    ),
    Mutation(
        "leave a request under way whose answer cannot be encoded",
        "remoting/failures.py",
        "    except Exception as error:\n        return encode_command(failure_response(request, error))\n",
        "    except ZeroDivisionError as error:\n        return encode_command(failure_response(request, error))\n",
        ("tests/remoting/test_answers.py",),
    ),
    Mutation(
        "take an unknown verdict of a listener for success",
        "client/verdicts.py",
        'the message is sent back")\n        return 0\n',
        'the message is sent back")\n        return None\n',
        ("tests/client/test_verdicts.py",),
    ),
    Mutation(
        "send back what no listener saw",
        "client/blocking.py",
        "            raise NotHandled(str(error)) from error\n",
        "            raise\n",
        ("tests/client/test_leaving.py",),
    ),
    Mutation(
        "count anew what is unsent at each write",
        "remoting/connection.py",
        "        if not self._answers_unread:\n            self._answers_unread = True\n",
        "        if True:\n            self._answers_unread = True\n",
        ("tests/remoting/test_tcp.py",),
    ),
    Mutation(
        "keep what was not sent as long as the connection is known",
        "remoting/tcp.py",
        "        self._tempDataBuffer = []\n        self._tempDataLen = 0\n",
        "",
        ("tests/remoting/test_tcp.py",),
    ),
    Mutation(
        "handle all frames of a read at once",
        "remoting/connection.py",
        "self._clock.seconds() >= until or not self._may_go_on()",
        "not self._may_go_on()",
        ("tests/remoting/test_turns.py",),
    ),
    Mutation(
        "answer on though the peer does not read",
        "remoting/connection.py",
        "self._clock.seconds() >= until or not self._may_go_on()",
        "self._clock.seconds() >= until",
        ("tests/remoting/test_tcp.py", "tests/remoting/test_bounds.py"),
    ),
    Mutation(
        "serve who came first, not who was served least",
        "remoting/turns.py",
        "address.handled_s = handled_s + then - now",
        "address.handled_s = 0.0",
        ("tests/remoting/test_turns.py",),
    ),
    Mutation(
        "let who finds the route ready go before those who wait for it",
        "client/routes.py",
        "not entry.waiting and self._is_good",
        "self._is_good",
        ("tests/client/test_in_flight.py",),
    ),
    Mutation(
        "count the time of a send from its call",
        "client/net.py",
        "return max(now - due, _EXTENSION_S) if now - due >= _LATE_S else 0.0",
        "return 0.0",
        ("tests/client/test_in_flight.py",),
    ),
    Mutation(
        "send an overdue message back twice",
        "client/consuming.py",
        "if owner.dropped or run.is_sent_back:",
        "if owner.dropped:",
        ("tests/client/test_push_consumer.py",),
    ),
    Mutation(
        "serve who only asks and wants no answer",
        "remoting/handlers.py",
        "        if request.is_oneway and request.code in ASKS_ONLY:\n            return None\n",
        "",
        ("tests/remoting/test_answers.py",),
    ),
    Mutation(
        "read bodies of any length",
        "remoting/handlers.py",
        "            _check_length(request)\n",
        "",
        ("tests/remoting/test_answers.py",),
    ),
    Mutation(
        "wait for half a TLS handshake",
        "remoting/connection.py",
        "        self._handshake_begun = self._clock.seconds()\n",
        "",
        ("tests/remoting/test_tls.py",),
    ),
    Mutation(
        "log as many lines as peers like",
        "daemons/logs.py",
        "return count <= LINES_PER_MINUTE",
        "return True",
        ("tests/daemons/test_logs.py",),
    ),
    Mutation(
        "let one address take all that all share",
        "remoting/limits.py",
        "return free > 0 and free_here >= 0 and own <= SHARE * free_here",
        "return free > 0",
        ("tests/remoting/test_limits.py",),
    ),
    Mutation(
        "close the newcomer for what others keep",
        "remoting/limits.py",
        "part = max(self._addresses.values(), key=lambda each: each.kept_bytes)",
        "part = min(self._addresses.values(), key=lambda each: each.kept_bytes or 1 << 40)",
        ("tests/remoting/test_limits.py",),
    ),
]
