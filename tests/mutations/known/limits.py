"""Mistakes about what peers may cost: lengths, numbers, caches, and work that comes later."""

from tests.mutations.mutation import Mutation

MISTAKES = [
    Mutation(
        "keep a text of any length as the key of a cache",
        "wire/bounded_cache.py",
        "        if size > self._entry_bytes_max:\n",
        "        if False:\n",
        ("tests/test_caches.py::test_a_bounded_cache_does_not_keep_what_is_large",),
    ),
    Mutation(
        "keep rights by names whose length nobody has checked",
        "access/guard.py",
        "                self._plain_rights.keep(place, is_allowed, sum(map(len, names)))\n",
        "                self._plain_rights.keep(place, is_allowed, 0)\n",
        ("tests/broker/test_long_texts.py",),
        with_compiled=True,
    ),
    Mutation(
        "add a table that nothing bounds",
        "broker/queue_locks.py",
        "        self._count = 0\n",
        "        self._count = 0\n        self._seen: dict[str, int] = {}\n",
        ("tests/test_caches.py::test_each_table_and_cache_has_a_bound",),
    ),
    Mutation(
        "index all that waits in one turn",
        "store/dispatch.py",
        "put_each(found, partial(index.add, is_over=is_over), ",
        "put_each(found, index.add, ",
        ("tests/store/test_dispatch_steps.py::test_a_turn_ends_when_its_time_is_over",),
    ),
    Mutation(
        "make all bit maps in one turn",
        "store/consumequeue_dispatcher.py",
        "            if bits and is_over():\n",
        "            if False:\n",
        ("tests/store/test_dispatch_steps.py::test_a_bit_map_at_a_time_is_made",),
    ),
    Mutation(
        "dispatch in nobody's time what a sender has sent",
        "broker/assembly.py",
        "        table.charge = store.charge\n",
        "",
        ("tests/broker/test_send.py::test_who_sends_much_works_for_its_dispatch",),
    ),
    Mutation(
        "have a sender repeat a dispatch that has failed",
        "store/dispatch.py",
        "and self._call is not None and not self._has_failed:\n",
        "and self._call is not None:\n",
        ("tests/store/test_dispatch_steps.py::test_on_a_full_disk_nobody_repeats_what_has_failed",),
    ),
    Mutation(
        "register a client that has left while its heartbeat was read",
        "broker/requests/client_requests.py",
        "            if connection.closed or self._in_steps.get(connection) is not marks:\n",
        "            if False:\n",
        ("tests/broker/test_largest_requests.py::test_who_leaves_meanwhile_is_not_registered",),
    ),
    Mutation(
        "parse a heartbeat of a million empty lists",
        "wire/long_bodies.py",
        """ and (count := data.count(b"{") + data.count(b"[")) > CONTAINERS_MAX:""",
        """ and (count := data.count(b"{") + data.count(b"[")) > 2**40:""",
        ("tests/broker/test_largest_requests.py::test_what_takes_long_to_parse_is_refused_unread",),
    ),
]
