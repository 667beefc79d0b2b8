"""Mistakes of the Spark source."""

from tests.mutations.mutation import Mutation

_PLANNING = "tests/spark/test_planning.py"
_READING = "tests/spark/test_reading.py"
_PACKING = "tests/spark/test_packing.py"
_WRITING = "tests/spark/test_writing.py"
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
        "            ahead.abandon()\n\n\ndef read_filtered",
        "            pass\n\n\ndef read_filtered",
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
    Mutation(
        "send rows of Spark's sink again that were stored without an answer",
        "spark/writing.py",
        "        if self.options.guarantee is Guarantee.AT_LEAST_ONCE:\n            return False\n",
        "        if self.options.guarantee:\n            return False\n",
        (f"{_WRITING}::test_a_send_without_an_answer_that_was_stored_is_not_sent_again",),
    ),
    Mutation(
        "look rows of Spark's sink up in an index that is behind the log",
        "spark/writing.py",
        "        if anew or topic not in self._indexed:\n",
        "        if anew and topic not in self._indexed:\n",
        (f"{_WRITING}::test_rows_in_the_log_that_are_not_in_the_index_yet_are_waited_for",),
    ),
    Mutation(
        "overtake a send of Spark's sink to the same queue",
        "spark/writing.py",
        " or queue in self._busy:\n",
        ":\n",
        (f"{_WRITING}::test_a_failed_send_of_a_queue_is_not_overtaken",),
    ),
    Mutation(
        "take the first row of Spark's sink for a sign where columns identify rows",
        "spark/writing.py",
        "self._has_own_keys or self._was_begun(piece)",
        "self._was_begun(piece)",
        (f"{_WRITING}::test_rows_in_another_order_are_recognised_by_their_columns",),
    ),
    Mutation(
        "raise an error of Spark's sink while its sends are under way",
        "spark/writing.py",
        "            concurrent.futures.wait(self._under_way, _END_S)\n",
        "",
        (f"{_WRITING}::test_what_is_under_way_ends_before_an_error_is_raised",),
    ),
    Mutation(
        "give rows of two partitions of Spark's sink the same keys",
        "spark/packing.py",
        "_digest(10, write_id.encode(), str(partition).encode())",
        "_digest(10, write_id.encode())",
        (f"{_PACKING}::test_unique_keys_of_a_row_are_the_same_in_each_attempt",),
    ),
    Mutation(
        "put long and short bodies of Spark's sink together where order counts",
        "spark/packing.py",
        "np.where(ordered, 0, encoded.sys_flags)",
        "encoded.sys_flags",
        (f"{_PACKING}::test_order_holds_where_long_and_short_bodies_of_a_queue_mix",),
    ),
    Mutation(
        "trust the brokers' hashes of tags",
        "spark/decode.py",
        "    if not tags or not len(rows):\n",
        "    if tags or not len(rows):\n",
        ("tests/spark/test_filters.py::test_tags_are_compared_by_text_as_brokers_compare_hashes",),
    ),
    Mutation(
        "read topics of the system because a pattern matches them",
        "spark/choosing.py",
        "        return not is_hidden or topic in str(self.pattern)\n",
        "        return True\n",
        ("tests/spark/test_choosing.py::test_a_pattern_matches_whole_names_and_nothing_of_the_system",),
    ),
    Mutation(
        "round a time down, so that earlier messages are read",
        "spark/starting.py",
        "        at = math.ceil(found.timestamp() * 1000)\n",
        "        at = int(found.timestamp() * 1000)\n",
        ("tests/spark/test_choosing.py::test_a_batch_starts_at_the_first_message_stored_at_or_after_a_time",),
    ),
    Mutation(
        "end a range of pushed filters at the first time that is too late, though the clock may go back",
        "spark/pushdown.py",
        "            until = math.ceil(max(times)) + CLOCK_STEP_MS\n",
        "            until = math.ceil(max(times))\n",
        ("tests/spark/test_pushdown.py::test_pushed_filters_change_no_row",),
    ),
]
