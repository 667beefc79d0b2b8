"""Mistakes of what is stored again: delayed and half messages."""

from tests.mutations.mutation import Mutation

_DELAY = "tests/broker/test_delay.py"

MISTAKES = [
    Mutation(
        "not say of a delayed message's copy where it came from",
        "broker/delay.py",
        "prepared_offset=origin(record.physical_offset)",
        "prepared_offset=0",
        (_DELAY,),
    ),
    Mutation(
        "take the copy of the first message of the log for none",
        "broker/stored_copies.py",
        "    return -1 - physical_offset\n",
        "    return -physical_offset\n",
        (_DELAY,),
    ),
    Mutation(
        "expect that all brokers' clocks are the same",
        "broker/stored_copies.py",
        "SKEW_MS = 60_000",
        "SKEW_MS = 0",
        (_DELAY,),
    ),
    Mutation(
        "look for copies only for what is due at the start",
        "broker/delay.py",
        "since_ms > self._copied_until_ms",
        "since_ms > self._copied_until_ms - SKEW_MS",
        (_DELAY,),
    ),
]
