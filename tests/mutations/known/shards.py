"""Mistakes of brokers that are several processes."""

from tests.mutations.mutation import Mutation

_SUPERVISOR = "tests/daemons/test_supervisor.py"

MISTAKES = [
    Mutation(
        "create dead letter and retry topics of messages that are sent back on one shard alone",
        "broker/requests/send_back.py",
        ", has_message=True",
        "",
        ("tests/broker/test_sibling_topics.py",),
    ),
    Mutation(
        "tell other shards of an extended retry topic",
        "broker/topic_table.py",
        "if known is None and has_message:",
        "if topic is not known and has_message:",
        ("tests/broker/test_sibling_topics.py",),
    ),
    Mutation(
        "forget to tell a shard that was away of the topics that others created",
        "daemons/supervisor.py",
        "        self._tell_topics(shard)\n        if self._is_up:\n",
        "        if self._is_up:\n",
        ("tests/daemons/test_supervisor.py",),
    ),
    Mutation(
        "tell other shards of topics that they told of",
        "broker/sibling_topics.py",
        "            topics.put(topic)\n",
        "            topics.create(topic)\n",
        ("tests/broker/test_sibling_topics.py",),
    ),
    Mutation(
        "put a shard's log among the segments of another's",
        "config/shards.py",
        'else f"{path}-shard-{shard}"',
        'else os.path.join(path, f"shard-{shard}")',
        ("tests/config/test_shards.py::test_a_log_of_its_own_path_is_never_in_that_of_another",),
    ),
    Mutation(
        "hide the messages of the shard after the last",
        "daemons/shard_stores.py",
        "if shard >= settings.shards",
        "if shard > settings.shards",
        ("tests/daemons/test_shard_stores.py::test_messages_that_nobody_would_serve_prevent_a_start",),
    ),
    Mutation(
        "start a shard again while all stop",
        "daemons/supervisor.py",
        "            shard.start.cancel()\n",
        "",
        (f"{_SUPERVISOR}::test_each_is_told_once_to_stop_and_all_are_waited_for",),
    ),
    Mutation(
        "start a shard that dies at once every second",
        "daemons/supervisor.py",
        "shard.wait = min(2 * shard.wait, WAIT_SECONDS_MAX)",
        "shard.wait = WAIT_SECONDS",
        (f"{_SUPERVISOR}::test_it_waits_longer_each_time_until_it_has_served_for_a_minute",),
    ),
    Mutation(
        "count the time in which a shard did not serve",
        "daemons/supervisor.py",
        "if served and self._clock",
        "if self._clock",
        (f"{_SUPERVISOR}::test_it_waits_longer_each_time_until_it_has_served_for_a_minute",),
    ),
    Mutation(
        "lose the last words of a shard",
        "daemons/supervisor.py",
        "            if rest:\n",
        "            if not rest:\n",
        (f"{_SUPERVISOR}::test_lines_are_whole_and_none_is_lost",),
    ),
    Mutation(
        "send a signal to a shard that has no handler for it yet",
        "daemons/supervisor.py",
        "if shard.process is not None and shard.status is not None:",
        "if shard.process is not None:",
        (f"{_SUPERVISOR}::test_those_that_serve_read_the_settings_again",),
    ),
    Mutation(
        "leave out lines of shards beyond those of a minute",
        "daemons/logs.py",
        "if is_relayed or self._few.passes(event):",
        "if self._few.passes(event):",
        ("tests/daemons/test_logs.py::test_none_of_them_is_left_out",),
    ),
    Mutation(
        "let Ctrl-C end a shard beside its supervisor",
        "daemons/shard.py",
        "    signal.signal(signal.SIGINT, signal.SIG_IGN)\n",
        "",
        ("tests/daemons/test_shards.py::test_ctrl_c_stops_each_once",),
    ),
    Mutation(
        "change a file of settings while another process does",
        "config/changes.py",
        "        fcntl.flock(fd, fcntl.LOCK_EX)\n",
        "",
        ("tests/config/test_changes.py::test_several_processes_change_one_file",),
    ),
    Mutation(
        "give a new shard the topic that bears the broker's name",
        "daemons/shard_tables.py",
        "if not topic.order and name != settings.broker_name",
        "if not topic.order",
        ("tests/daemons/test_shard_tables.py::test_new_shards_begin_with_topics_and_groups_of_the_first",),
    ),
]
