"""Mistakes of the compiled module, each a byte or a comparison beside what is right."""

from tests.mutations.mutation import Mutation

_PULLS = "tests/kernel/test_pulls.py"
_SENDS = "tests/kernel/test_sends.py"
_BATCHES = "tests/kernel/test_sent_batches.py"
_TAIL = "tests/kernel/test_tail.py"
_SOCKETS = "tests/kernel/test_sockets.py"
_RECORDS = "tests/kernel/test_records.py"
_CLIENTS = "tests/kernel/test_clients.py"
_CODEC = "tests/kernel/test_codec.py"
_WAITERS = "tests/kernel/test_waiters.py"
_ASYNCIO = "tests/client/test_automatic_batches.py"


def _mistake(name: str, file: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(name, f"kernel/{file}.pxi", old, new, tests, with_compiled=True)


MISTAKES = [
    _mistake(
        "leave out a message that fits a pull to the byte",
        "pulls",
        "picked.total + size > bytes_limit",
        "picked.total + size >= bytes_limit",
        f"{_PULLS}::test_messages_are_taken_up_to_the_byte",
    ),
    _mistake(
        "use what is known of resident messages when it has just lapsed",
        "pulls",
        "if now >= self.until or",
        "if now > self.until or",
        f"{_PULLS}::test_where_messages_are_is_looked_up_anew_after_a_moment",
    ),
    _mistake(
        "serve a part of the log that reaches into a corrupt range",
        "pulls",
        "or self.low < self.corrupt_ranges.intact_from:",
        "or self.high < self.corrupt_ranges.intact_from:",
        f"{_PULLS}::test_what_was_kept_of_a_queue_is_not_used",
    ),
    _mistake(
        "commit the offset of a pull that does not ask for it",
        "pulls",
        "    if not sys_flag & COMMIT_OFFSET:\n        pull.committed = -1\n",
        "    if not sys_flag:\n        pull.committed = -1\n",
        _PULLS,
    ),
    _mistake(
        "go on behind a pull by the messages that it took, not by the entries that it looked at",
        "pulls",
        "pull.offset + picked.looked_at)",
        "pull.offset + picked.taken)",
        _PULLS,
    ),
    _mistake(
        "append to pages whose time is just over",
        "tail",
        "or now >= self._readied_until\n",
        "or now > self._readied_until\n",
        _TAIL,
    ),
    _mistake(
        "want the next segment a record late",
        "tail",
        "or begin + n > self._next_wanted_at or",
        "or begin > self._next_wanted_at or",
        _TAIL,
    ),
    _mistake(
        "let the timestamp of the log go back with a batch that was encoded before",
        "tail",
        "        self.last_timestamp_ms = max(self.last_timestamp_ms, now)\n",
        "        self.last_timestamp_ms = now\n",
        _TAIL,
    ),
    _mistake(
        "take a delay level with leading zeros",
        "sends",
        "return value.p[0] != c'0' and read_number(",
        "return read_number(",
        _SENDS,
    ),
    _mistake(
        "leave a batch whose records are as long together as a message may be",
        "sends",
        "            if counted > self._body_max:\n",
        "            if counted >= self._body_max:\n",
        f"{_BATCHES}::test_both_ways_have_the_same_limit_to_the_byte",
    ),
    _mistake(
        "take a batch whose long header counts",
        "sends",
        'and field_bytes(&r.header, "producerGroup", 13) is not None:',
        'and field_bytes(&r.header, "producer", 8) is not None:',
        f"{_BATCHES}::test_which_headers_of_batches_are_taken",
    ),
    _mistake(
        "keep the WAIT of a message of a batch that has its own",
        "sends",
        'if shared.asked.has_wait and is_text(names[count], "WAIT", 4):  # the batch\'s counts\n',
        'if shared.asked.has_wait and is_text(names[count], "WAIT", 3):\n',
        _BATCHES,
    ),
    _mistake(
        "send over a socket that has earlier bytes to send",
        "sockets",
        "            if socket is None or not socket.is_free:\n",
        "            if socket is None:\n",
        _SOCKETS,
    ),
    _mistake(
        "take a property without a value for one that replaces the value before it",
        "records",
        "        if mark != NULL and mark + 1 < stop:\n            name.p, name.n = at, mark - at\n            value.p",
        "        if mark != NULL and mark < stop:\n            name.p, name.n = at, mark - at\n            value.p",
        _RECORDS,
    ),
    _mistake(
        "take the store time of the last record that was scanned for the newest",
        "records",
        "newest_ms = max(newest_ms, r.timestamp_ms)",
        "newest_ms = r.timestamp_ms",
        f"{_RECORDS}::test_the_same_records_are_found",
    ),
    _mistake(
        "open one queue more than there is room for in one call",
        "records",
        "if len(opened) >= QUEUES_MAX:",
        "if len(opened) > QUEUES_MAX:",
        f"{_RECORDS}::test_more_queues_than_one_call_takes",
    ),
    _mistake(
        "read behind the delays for a level above the last",
        "records",
        "self._delays_ms[min(level, <int64_t> self._levels) - 1]",
        "self._delays_ms[min(level - 1, <int64_t> self._levels)]",
        _RECORDS,
    ),
    _mistake(
        "say that tags differ only where the last one does",
        "records",
        "        elif code != queue.code:\n            queue.is_mixed = True\n",
        "        else:\n            queue.is_mixed = code != queue.code\n",
        _RECORDS,
    ),
    _mistake(
        "leave the sign of the one hash that has no positive number",
        "records",
        "else (0 - h) & 0x7FFFFFFF",
        "else 0 - h",
        f"{_RECORDS}::test_the_hash_of_a_key_in_the_index_is_positive",
    ),
    _mistake(
        "enter one key more into an index file than it has room for",
        "records",
        "file.number + n > file.number_max:",
        "file.number + n > file.number_max + 1:",
        _RECORDS,
    ),
    _mistake(
        "enter the keys of the record again that a start goes on behind",
        "records",
        " and r.physical_offset != resumed:",
        ":",
        f"{_RECORDS}::test_an_index_goes_on_behind_its_newest_message_after_a_start",
    ),
    _mistake(
        "cancel a send that has its result",
        "batches",
        "        if self.state != WAITING:\n            return False\n        self.end(CANCELLED",
        "        if self.state == CANCELLED:\n            return False\n        self.end(CANCELLED",
        _WAITERS,
        _ASYNCIO,
    ),
    _mistake(
        "leave out the message that fills a batch to the byte",
        "batches",
        "if batch.messages and size > self.bytes_max",
        "if batch.messages and size >= self.bytes_max",
        f"{_ASYNCIO}::test_a_batch_on_asyncio_is_full_to_the_byte",
    ),
    _mistake(
        "count the names of properties for a batch, and not their values",
        "batches",
        " + sum(map(len, properties.values()))",
        "",
        _ASYNCIO,
    ),
    _mistake(
        "keep the slots of the bytes of cancelled messages",
        "batches",
        "            self.body_bytes -= found_bytes\n",
        "",
        _ASYNCIO,
    ),
    _mistake(
        "refuse a slot for the last byte that may be in flight",
        "batches",
        "size <= self._bytes_max - self._bytes",
        "size < self._bytes_max - self._bytes",
        "tests/client/test_sends_in_flight.py::test_sends_take_all_bytes_that_may_be",
    ),
    _mistake(
        "miss a byte above ASCII at the beginning of eight",
        "codec",
        "0x8080808080808080ull",
        "0x8080808080808000ull",
        _CODEC,
    ),
    _mistake(
        "take a pair without a value for the last of its name",
        "codec",
        "stop - at > mark_n and",
        "stop - at >= mark_n and",
        f"{_CODEC}::test_values_are_those_of_the_last_pair_that_has_one",
    ),
    _mistake(
        "take a message of a pull twice",
        "clients",
        "lowest = r.queue_offset + 1",
        "lowest = r.queue_offset",
        f"{_CLIENTS}::test_what_was_not_asked_for_is_refused_as_in_python",
    ),
    _mistake(
        "show a message that is no retry under the topic that it was retried for",
        "clients",
        'properties.get("RETRY_TOPIC", own_topic) if is_retry(topic) else own_topic',
        'properties.get("RETRY_TOPIC", own_topic)',
        _CLIENTS,
    ),
    _mistake(
        "call a listener again when its time is just over",
        "clients",
        "<double> now_s() < until:",
        "<double> now_s() <= until:",
        "tests/client/test_listener_calls.py",
    ),
    _mistake(
        "encode properties that are a byte too long for a record",
        "producers",
        "return text.size <= PROPERTIES_MAX",
        "return text.size <= PROPERTIES_MAX + 1",
        f"{_CLIENTS}::test_properties_are_as_long_as_a_record_can_have",
    ),
    _mistake(
        "encode a frame that is longer than a frame may be",
        "producers",
        "> FRAME_MAX - FRAME_HEAD:",
        "> FRAME_MAX:",
        f"{_CLIENTS}::test_a_frame_is_as_long_as_a_frame_may_be",
    ),
    _mistake(
        "take the answer for another queue for that of a send",
        "producers",
        "        if queue.queue_id != queue_id:\n            break\n",
        "",
        _CLIENTS,
    ),
    _mistake(
        "read a header of a frame that is longer than the frame",
        "frames",
        "head > length - 4 or",
        "head > length or",
        f"{_CLIENTS}::test_a_header_that_is_longer_than_its_frame_is_left",
    ),
    _mistake(
        "keep the version of the header that was read before",
        "frames",
        "    h.version, h.remark.p = 0, NULL\n",
        "    h.remark.p = NULL\n",
        f"{_CLIENTS}::test_responses_are_read_as_in_python",
    ),
    _mistake(
        "take a header with bytes behind its object",
        "frames",
        "return p + 1 == end and h.have == HAS_ALL",
        "return h.have == HAS_ALL",
        f"{_CLIENTS}::test_headers_that_are_not_plain_json_are_left",
    ),
    _mistake(
        "take numbers with leading zeros in a header",
        "frames",
        "(digits.n > 1 and digits.p[0] == c'0') or not",
        "not",
        f"{_CLIENTS}::test_headers_that_are_not_plain_json_are_left",
    ),
    _mistake(
        "take a character that is encoded in more bytes than it needs",
        "bytes",
        "0xA0 if c == 0xE0 else 0x80",
        "0x80",
        f"{_CODEC}::test_bytes_are_text_where_python_says_so",
    ),
    _mistake(
        "take a character behind the last one of Unicode",
        "bytes",
        "0x8F if c == 0xF4 else 0xBF",
        "0xBF",
        f"{_CODEC}::test_bytes_are_text_where_python_says_so",
    ),
]
