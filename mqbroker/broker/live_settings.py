"""The broker's settings as they are now, and the parts that are told when some of them change.

What may be changed while the broker runs is what is read from `current` at each use, and what a part follows: no path,
address, name, command or credential is among it. Must never know who changes them, or where they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.logger import Logger

from mqbroker.config import BrokerSettings, show_settings
from mqbroker.config.changes import change_settings
from mqbroker.errors import Refused
from mqbroker.wire.bodies import DataVersion
from mqbroker.wire.codes import ResponseCode

log = Logger()

Follower = Callable[[BrokerSettings], None]

#: The keys that parts read from `LiveSettings.current` whenever they need them.
READ_AT_USE = frozenset(
    (
        *("autoCreateSubscriptionGroup", "groupsMax", "topicsMax", "offsetsMax", "clientsMax", "heldPullsMax"),
        *("autoDeleteUnusedStats", "enableScheduleMessageStats", "notifyConsumerIdsChangedEnable"),
        *("brokerPermission", "longPollingEnable", "shortPollingTimeMills", "slaveReadEnable", "defaultQueryMaxNum"),
        *("enablePropertyFilter", "filterSupportRetry", "storeReplyMessageEnable", "forceRegister"),
        *("transactionTimeOut", "transactionCheckMax", "transactionCheckInterval"),
        *("disableConsumeIfConsumerReadSlowly", "consumerFallbehindThreshold"),
    )
)


class LiveSettings:
    """Settings that can be changed. `now` gives seconds since the epoch."""

    def __init__(self, settings: BrokerSettings, now: Callable[[], float]) -> None:
        self.current = settings
        self._now = now
        self.data_version = DataVersion(int(now() * 1000), 0)
        self._followers: list[tuple[frozenset[str], Follower]] = []

    def follow(self, follower: Follower, *keys: str) -> None:
        """From now on `keys` may be changed, and `follower` is called with the new settings when one of them is."""
        self._followers.append((frozenset(keys), follower))

    @property
    def changeable(self) -> frozenset[str]:
        """The keys that may be changed."""
        return READ_AT_USE.union(*(keys for keys, _ in self._followers))

    def change(self, changes: Mapping[str, str]) -> None:
        """Take all of the changes, by key. Raises NotChangeable and BadSetting with nothing changed."""
        before = _values(self.current)
        settings = change_settings(self.current, changes, self.changeable)
        after = _values(settings)
        self.current = settings
        self.data_version = self.data_version.next(int(self._now() * 1000))
        changed = {key for key in changes if before[key] != after[key]}
        for key in sorted(changed):
            log.info("{key} is {after} now, was {before}", key=key, before=before[key], after=after[key])
        for keys, follower in self._followers:
            if keys & changed:
                follower(settings)

    def adopt(self, settings: BrokerSettings) -> list[str]:
        """Take what may be changed of settings that were read anew; returns the other keys that differ."""
        new, now = _values(settings), _values(self.current)
        changeable = self.changeable
        differ = [key for key in new if new[key] != now.get(key)]
        self.change({key: new[key] for key in differ if key in changeable})
        return [key for key in differ if key not in changeable]


def _values(settings: BrokerSettings) -> dict[str, str]:
    return dict(line.split("=", 1) for line in show_settings(settings))


def full(what: str, count: int, key: str) -> Refused:
    """The refusal of one more of `what`, of which the setting `key` allows as many as there are."""
    remark = f"this broker has {count} {what}, as many as {key} allows: remove some that nobody needs, or raise {key}"
    return Refused(ResponseCode.SYSTEM_ERROR, remark)
