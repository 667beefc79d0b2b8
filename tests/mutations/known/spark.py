"""Mistakes of the Spark source."""

from tests.mutations.mutation import Mutation

_PLANNING = "tests/spark/test_planning.py"
_READING = "tests/spark/test_reading.py"
_STREAM = "tests/spark/test_stream_reader.py"

MISTAKES = [
    Mutation(
        "begin a queue that appears later at its end",
        "spark/offsets.py",
        "        found[queue] = bound.end if queue in start else bound.first\n",
        "        found[queue] = bound.end\n",
        (f"{_STREAM}::test_a_new_queue_is_read_from_its_beginning_over_a_restart",),
    ),
    Mutation(
        "take a first batch that is repeated for one that goes back",
        "spark/offsets.py",
        "in start.items() if start != initial else ():\n",
        "in start.items():\n",
        (f"{_PLANNING}::test_the_first_batch_once_more_reads_nothing_wherever_the_queues_are_now",),
    ),
    Mutation(
        "call the first message that is left deleted",
        "spark/offsets.py",
        '        if offset < bound.first:\n            details = f"read up to',
        '        if offset <= bound.first:\n            details = f"read up to',
        (_PLANNING, _STREAM),
    ),
    Mutation(
        "call the end of a queue beyond it",
        "spark/offsets.py",
        "        if offset > bound.end:\n            raise BadOption(",
        "        if offset >= bound.end:\n            raise BadOption(",
        ("tests/spark/test_offsets.py",),
    ),
    Mutation(
        "go back to a target that a stream has passed",
        "spark/offsets.py",
        "max(start[queue], min(offset, target.get(queue, start[queue])))",
        "min(offset, target.get(queue, start[queue]))",
        (f"{_PLANNING}::test_a_target_is_not_passed",),
    ),
    Mutation(
        "let a long queue starve a short one under a limit of rows",
        "spark/offsets.py",
        "{queue: 1 + rest * (waiting - 1) // more for",
        "{queue: rows * waiting // total for",
        (f"{_PLANNING}::test_a_limit_holds_and_starves_no_queue",),
    ),
    Mutation(
        "begin a repeated batch that skipped messages where the batch before it ended",
        "spark/progress.py",
        "plan_stream(start.positions | end.resumed, ",
        "plan_stream(start.positions, ",
        (f"{_STREAM}::test_a_batch_that_skipped_is_repeated_as_it_was",),
    ),
    Mutation(
        "compare the last message of a queue only while messages arrive",
        "spark/source.py",
        "            and (bound.end > here.positions[queue] or queue not in self._compared)\n",
        "            and bound.end > here.positions[queue]\n",
        (f"{_STREAM}::test_a_topic_made_again_just_as_long_is_noticed_at_a_restart",),
    ),
    Mutation(
        "skip the rest of a chunk with a corrupt message",
        "spark/losses.py",
        "        if loss.first is None and end - at > 1 and ",
        "        if loss.first is None and end - at > 9 and ",
        (f"{_STREAM}::test_exactly_the_message_that_does_not_decode_is_skipped",),
    ),
    Mutation(
        "count the wait for a broker from its first absence on",
        "spark/reading.py",
        "        self._since = None\n        self._pause_s",
        "        self._pause_s",
        (f"{_READING}::test_patience_is_renewed_by_what_comes",),
    ),
    Mutation(
        "keep the longest pause after a broker has answered again",
        "spark/reading.py",
        "        self._since = None\n        self._pause_s = _PAUSE_S_MIN\n",
        "        self._since = None\n",
        (f"{_READING}::test_pauses_begin_anew_with_each_absence",),
    ),
    Mutation(
        "leave pulls in flight when a reader stops early",
        "spark/reading.py",
        "            ahead.abandon()\n",
        "            pass\n",
        (_READING,),
    ),
    Mutation(
        "learn the size of responses from the last pull of a window, which asked for less",
        "spark/reading.py",
        " if at in pieces and count == self.step]\n",
        " if at in pieces]\n",
        (_READING,),
    ),
    Mutation(
        "cut a batch before its first body, which alone inflates to too much",
        "spark/decode.py",
        "        if total + len(body) > INFLATED_BATCH_BYTES and n > first:\n",
        "        if total + len(body) > INFLATED_BATCH_BYTES:\n",
        ("tests/spark/test_decode.py::test_a_body_that_alone_inflates_to_too_much_has_a_batch_of_its_own",),
    ),
]
