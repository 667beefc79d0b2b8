"""Mistakes about what readers see of a replicated log, and about what a master does whose lease has run out."""

from tests.mutations.mutation import Mutation

_LIMIT = "tests/store/test_readers_limit.py"
_READERS = "tests/broker/service/test_group_readers.py"
_STORES = "tests/broker/service/test_group_stores.py"

MISTAKES = [
    Mutation(
        "dispatch what is not confirmed",
        "store/dispatch.py",
        "return end if self.limit is None else min(end, self.limit())",
        "return end",
        (_LIMIT, _READERS),
    ),
    Mutation(
        "dispatch all of a batch in which the limit is",
        "store/dispatch.py",
        "            if found.end > end:\n",
        "            if False:\n",
        (_LIMIT,),
    ),
    Mutation(
        "show the tail that stands in consume queues at a start",
        "store/queue_rebuild.py",
        "cut = [queue for queue in queues if queue.end_of_last() > end]",
        "cut = []",
        (_LIMIT, _READERS),
    ),
    Mutation(
        "send a consumer back that has read further at the former master",
        "store/get_message_result.py",
        "    if high < offset <= next_offset:\n",
        "    if False:\n",
        (_LIMIT, _READERS),
    ),
    Mutation(
        "find messages by their keys or ids that readers do not see",
        "store/queries.py",
        "if physical_offset + real_size > self.limit():",
        "if False:",
        (_LIMIT,),
    ),
    Mutation(
        "tell held pulls of dispatched messages while the store stops",
        "store/message_store.py",
        "        self.on_dispatch.clear()\n",
        "",
        (_LIMIT,),
    ),
    Mutation(
        "let held pulls wait after what they wait for is confirmed",
        "broker/broker_group.py",
        "            in_sync.on_confirmed.append(store.limit_moved)\n",
        "",
        (_READERS,),
    ),
    Mutation(
        "deliver delayed messages before it is seen which of them were delivered",
        "broker/broker_service.py",
        "                store.when_shown(part.start)\n",
        "                part.start()\n",
        (_READERS,),
    ),
    Mutation(
        "append to the log of a deposed master",
        "store/message_store.py",
        "if self.why_not_append is not None and (why := self.why_not_append()):",
        "if False:",
        (_READERS,),
    ),
    Mutation(
        "serve requests as a deposed master",
        "broker/assembly.py",
        "        if replication.is_certain is not None:\n",
        "        if False:\n",
        (_READERS,),
    ),
    Mutation(
        "serve pulls as a deposed master",
        "broker/requests/pull_message.py",
        "        if self._may_serve is not None and not self._may_serve():\n            return self._answer(",
        "        if False:\n            return self._answer(",
        (_READERS,),
    ),
    Mutation(
        "serve consumers from an incomplete replica",
        "broker/broker_group.py",
        "            return not self.store.why_not_whole\n",
        "            return True\n",
        (_READERS,),
    ),
    Mutation(
        "lead consumers past damage that another broker has not",
        "broker/requests/pull_message.py",
        "self._store.damages_found != damages",
        "False",
        (_STORES,),
    ),
    Mutation(
        "serve what a damaged master has before another is the master",
        "broker/broker_group.py",
        "(not self.store.gaps or self._giving_up.is_on)",
        "True",
        (_STORES,),
    ),
    Mutation(
        "tell consumers of an incomplete replica where to begin",
        "broker/broker_slave.py",
        "    codes: set[int] = set(_PLACES)\n",
        "    codes: set[int] = set(_PLACES) if is_master else set()\n",
        (_READERS,),
    ),
    Mutation(
        "store sends below the minimum of the in-sync set",
        "ha/acknowledgements.py",
        "if not self._refuses or self._quorum.is_near(self._slaves.log.end):",
        "if True:",
        (_READERS,),
    ),
]
