"""Mistakes of the compiled module, each a byte or a comparison beside what is right."""

from tests.mutations.mutation import Mutation

_PULLS = "tests/kernel/test_pulls.py"
_SENDS = "tests/kernel/test_sends.py"
_BATCHES = "tests/kernel/test_sent_batches.py"
_TAIL = "tests/kernel/test_tail.py"
_SOCKETS = "tests/kernel/test_sockets.py"


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
]
