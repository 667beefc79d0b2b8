"""A member of a group that breaks the group's rules: runs of whole groups notice it."""

from tests.mutations.mutation import Mutation

_GROUPS = ("tests/client/test_simulation.py",)

MISTAKES = [
    Mutation(
        "keep queues that are another member's share now",
        "client/membership.py",
        " for queue in self.queues if queue.topic == topic and queue not in share.queues])\n        new = ",
        " for queue in ()])\n        new = ",
        _GROUPS,
    ),
    Mutation(
        "send the first heartbeats only",
        "client/heartbeats.py",
        "            await self._send([addr for addr in self.addresses_in_use() if self._has_ended(",
        "            bool([addr for addr in self.addresses_in_use() if self._has_ended(",
        _GROUPS,
    ),
    Mutation(
        "let a producer join the heartbeats of others when it has sent something",
        "client/heartbeats.py",
        "        self._join()\n\n        async def send_due",
        "        async def send_due",
        ("tests/client/test_instance.py",),
    ),
    Mutation(
        "share a heartbeat that was made before it was asked for",
        "client/heartbeats.py",
        "                asked = line.asked\n                line.error = await self._send_now(addr)\n",
        "                line.error = await self._send_now(addr)\n                asked = line.asked\n",
        ("tests/client/test_instance.py",),
    ),
    Mutation(
        "commit what is pulled, and not what is consumed",
        "client/process_queue.py",
        "        return self.next_offset if first is None else min(first.queue_offset, self.next_offset)\n",
        "        return self.next_offset\n",
        _GROUPS,
    ),
    Mutation(
        "extend a time-out each time the loop is late",
        "remoting/response_table.py",
        " and made < _EXTENSIONS_MAX",
        "",
        ("tests/remoting/test_response_table.py",),
    ),
    Mutation(
        "take a cancellation on Twisted for a failure",
        "client/deferred_net.py",
        "        return isinstance(error, CancelledError) and task is not None and task.is_cancelled\n",
        "        return False\n",
        ("tests/client/test_closing.py",),
    ),
    Mutation(
        "hand out messages of a queue that has left",
        "client/push_consumer.py",
        "            self.consuming.finish(assigned)\n",
        "",
        ("tests/client/test_handover.py",),
    ),
    Mutation(
        "send what compression has made larger",
        "wire/compression.py",
        "if len(compressed) < len(body) else (body, 0)",
        "if body else (body, 0)",
        ("tests/wire/test_compression.py::test_a_body_is_compressed_only_if_that_makes_it_smaller",),
    ),
    Mutation(
        "decompress all bodies of a pull at once",
        "client/messages.py",
        "is_too_much = bool(is_compressed) and inflated >= INFLATED_BYTES_MAX",
        "is_too_much = False",
        ("tests/client/test_unreadable_bodies.py",),
    ),
    Mutation(
        "count bodies that cannot be decompressed for nothing",
        "client/messages.py",
        "0 if is_too_much else decompressed_in_vain(record.body, record.sys_flag)",
        "0",
        ("tests/client/test_unreadable_bodies.py",),
    ),
    Mutation(
        "decompress all bodies that a search found at once",
        "client/messages.py",
        "decompresses=not is_too_much)",
        "decompresses=True)",
        ("tests/client/test_unreadable_bodies.py",),
    ),
    Mutation(
        "go on with pulls in a row behind messages that were left",
        "client/assigned_queues.py",
        "        if found.next_offset != pulled.next_offset:\n            return False\n",
        "",
        ("tests/client/test_unreadable_bodies.py",),
    ),
    Mutation(
        "name a response's next offset where some of it was left",
        "client/queue_requests.py",
        "pulled.next_offset if left_at is None else left_at",
        "pulled.next_offset",
        ("tests/client/test_unreadable_bodies.py",),
    ),
    Mutation(
        "take a turn for a send of a thread that is left to the loop, which takes another",
        "client/direct_sends.py",
        "        assert compiled is not None\n        began, sent_at",
        "        assert compiled is not None\n        self._plain.take_turn(message.topic)\n        began, sent_at",
        ("tests/client/test_direct_sends.py::test_sends_that_are_left_to_the_loop_leave_out_no_queue",),
        with_compiled=True,
    ),
    Mutation(
        "send on a socket that was opened beside a connection that is lost",
        "client/direct_sends.py",
        "if found.beside is connection and now",
        "if now",
        ("tests/client/test_changing_direct_sends.py",),
        with_compiled=True,
    ),
]
