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
]
