"""The members of the consumer groups over a restart: config/consumerMembers.json.

After a start a broker knows no consumer until its next heartbeat, up to 30 s later. Meanwhile pulls would be refused,
and the first members that come would be given the queues of all others, which go on consuming them: messages come
twice. So the members of the run before are expected for EXPECTED_SECONDS: they count as members, with their
subscriptions, and each takes its place with its first heartbeat.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mqbroker.broker.client_registry import ConsumerRegistry
from mqbroker.errors import StoreDamaged
from mqbroker.store.jsonfile import JsonFile
from mqbroker.wire.bodies import ConsumerData, SubscriptionData
from mqbroker.wire.body import Body

log = Logger()

#: A heartbeat comes each 30 s.
EXPECTED_SECONDS = 45.0
#: How often the file is written where members have changed, and where they have not.
SAVE_SECONDS, SAVE_SECONDS_MAX = 5.0, 60.0
#: Members of a run that ended longer ago are not expected.
AGE_SECONDS_MAX = 3 * SAVE_SECONDS_MAX
#: Estimated size of the file: it takes some ms to write. Groups that do not fit are known from their next heartbeats.
BYTES_MAX = 512 * 1024
_SUBSCRIPTION_BYTES = 200


@attrs.frozen
class GroupMembers(Body):
    """A group and the ids of its clients."""

    consumer_data: ConsumerData
    client_ids: list[str]


@attrs.frozen
class Members(Body):
    """The members of all groups at a time."""

    saved_at_ms: int
    groups: list[GroupMembers]


class MembersFile:
    """Keeps the members of the groups of `registry`, and has those of the run before expected.

    :param now: returns seconds since the epoch; `steady` those of a clock that is never set.
    """

    def __init__(
        self, file: JsonFile, registry: ConsumerRegistry, now: Callable[[], float], steady: Callable[[], float]
    ) -> None:
        """Load the file. One that is damaged, or cannot be read, counts as none."""
        self._file = file
        self._registry = registry
        self._now = now
        self._steady = steady
        self._saved_at = steady()
        self._expected_until = self._saved_at + EXPECTED_SECONDS
        try:
            members = file.load(Members.from_json)
        except (StoreDamaged, OSError) as error:
            log.warn("{error}: consumer group members are unknown until their next heartbeats", error=error)
            return
        if members is None or abs(now() - members.saved_at_ms / 1000) > AGE_SECONDS_MAX:
            return
        for group in members.groups:
            registry.expect(group.consumer_data, group.client_ids)

    def look(self) -> None:
        """Called each SAVE_SECONDS: write the file if that is due, and expect nobody after the time for it."""
        now = self._steady()
        if now >= self._expected_until:
            self._expected_until = math.inf
            self._registry.expect_no_more()
        if self._registry.is_changed or now - self._saved_at >= SAVE_SECONDS_MAX:
            self.save()

    def freeze(self) -> None:
        """Keep the members as they are: connections close now that the broker stops."""
        self._registry.freeze()

    def save(self) -> Deferred[bool]:
        """Write the file; fires True when it is on the disk, False if that failed."""
        self._registry.is_changed = False
        self._saved_at = self._steady()
        return self._file.save(self._content)

    def _content(self) -> bytes:
        room = BYTES_MAX
        groups = []
        for data, client_ids in self._registry.members():
            size = sum(map(len, client_ids)) + sum(map(_size_of, data.subscription_data_set))
            if size <= room:
                room -= size
                groups.append(GroupMembers(data, client_ids))
        return Members(int(self._now() * 1000), groups).to_json()


def _size_of(subscription: SubscriptionData) -> int:
    tags = sum(map(len, subscription.tags_set)) + 12 * len(subscription.code_set)
    return _SUBSCRIPTION_BYTES + len(subscription.sub_string) + tags
