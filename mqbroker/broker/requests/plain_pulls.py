"""Plain pulls, read by the compiled module: pulls that have a plan, and whose messages are resident.

Pulls that find nothing, or would wait for the disk, are left to `pull_message`, which has the same result.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from mqbroker.broker.broker_stats import PullCounts
from mqbroker.broker.requests.pull_message import FOUND_TAIL, PULLS_AT_ONCE_MAX, PullRequests
from mqbroker.broker.requests.pull_plans import PullPlan, PullPlans
from mqbroker.kernel import compiled
from mqbroker.remoting.handlers import Answered, HandlerTable, PlainGuard, PlainRead
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.codes import RequestCode

#: Responses that are made before any of them is sent.
BYTES_AT_ONCE_MAX = 4 * 1024 * 1024


@attrs.define(eq=False)
class PlainPulls:
    """Takes plain pulls from the bytes of reads."""

    _store: MessageStore
    _pulls: PullRequests
    _plans: PullPlans
    _gets: PullCounts
    _guard: PlainGuard | None

    def take(self, reads: Sequence[PlainRead]) -> Answered | None:
        """Take the plain pulls at the beginnings of `reads`; see `HandlerTable.register_plain`."""
        assert compiled is not None
        found: Answered | None = compiled.take_pulls(
            reads,
            self._plans.by_key,
            self._store.queues_by_name,
            self._store.resident_ranges,
            reads[0][2].last_active,
            self._store.locate,
            self._commit,
            self._gets.found,
            FOUND_TAIL,
            PULLS_AT_ONCE_MAX,
            BYTES_AT_ONCE_MAX,
            self._guard,
        )
        return found

    def _commit(self, plan: PullPlan, offset: int) -> None:
        topic, group, queue_id = plan.counted_as
        self._pulls.commit(group, topic, queue_id, offset)


def serve_plain_pulls(
    table: HandlerTable, store: MessageStore, pulls: PullRequests, plans: PullPlans, gets: PullCounts
) -> None:
    """Have plain pulls taken by the compiled module, where it is there."""
    if compiled is not None:
        pulls.plans = plans
        code = RequestCode.PULL_MESSAGE
        guard = table.plain_guard(code, "topic", "consumerGroup")
        table.register_plain(code, PlainPulls(store, pulls, plans, gets, guard).take)
