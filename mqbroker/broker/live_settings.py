"""The broker's current settings, and callbacks for changes at runtime.

The settings that may change at runtime are those read from `current` at each use and those that a part follows; paths,
addresses, names, commands and credentials may not. Must never know who changes settings, or where they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.logger import Logger

from mqbroker.config import BrokerRole, BrokerSettings
from mqbroker.config.changes import NotChangeable, change_settings, differing_values
from mqbroker.config.load import values_of
from mqbroker.errors import BadSetting, Refused
from mqbroker.wire.bodies import DataVersion
from mqbroker.wire.codes import ResponseCode

log = Logger()

Follower = Callable[[BrokerSettings], object]

#: The keys that are read from `LiveSettings.current` at each use.
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


#: Changed over the network only if access control is on. Of the keys that can be changed, all about roles, paths,
#: addresses and who may connect, except namesrvAddr, which Java's tools change.
WITH_ACCESS_CONTROL_ONLY = frozenset(("brokerRole", "brokerId"))


class LiveSettings:
    """Settings that can change at runtime. `now` returns seconds since the epoch."""

    def __init__(self, settings: BrokerSettings, now: Callable[[], float]) -> None:
        self.current = settings
        self._now = now
        self.data_version = DataVersion(int(now() * 1000), 0)
        self._followers: list[tuple[frozenset[str], Follower]] = []

    def follow(self, follower: Follower, *keys: str) -> None:
        """Make `keys` changeable, and call `follower` with the new settings when one of them changes."""
        self._followers.append((frozenset(keys), follower))

    @property
    def changeable(self) -> frozenset[str]:
        """The keys that may be changed."""
        return READ_AT_USE.union(*(keys for keys, _ in self._followers))

    def change_by_request(self, changes: Mapping[str, str]) -> None:
        """As `change`, for a request from the network. Raises also NotChangeable where anybody could send it."""
        held = sorted(WITH_ACCESS_CONTROL_ONLY.intersection(changes))
        # An elected role is refused below, with another way.
        if held and not self.current.acl_enable and not self.current.etcd_endpoints:
            why = (
                "not changed by a request while access control is off, as everybody could send one; change it in the "
                "broker's settings file and send its process SIGHUP, or set aclEnable=true and sign as an administrator"
            )
            raise NotChangeable(", ".join(held), "the request", None, why)
        self.change(changes)

    def change(self, changes: Mapping[str, str]) -> None:
        """Apply all changes, by key. Raises NotChangeable and BadSetting with nothing changed."""
        before = values_of(self.current)
        settings = change_settings(self.current, changes, self.changeable)
        check_role(self.current, settings)
        changed = differing_values(self.current, settings)
        self.current = settings
        self.data_version = self.data_version.next(int(self._now() * 1000))
        for key, after in sorted(changed.items()):
            log.info("{key} is {after} now, was {before}", key=key, before=before[key], after=after)
        for keys, follower in self._followers:
            if not keys.isdisjoint(changed):
                follower(settings)

    def adopt(self, settings: BrokerSettings) -> list[str]:
        """Apply re-read settings that may be changed; returns the other keys that differ."""
        changeable, differ = self.changeable, differing_values(self.current, settings)
        self.change({key: value for key, value in differ.items() if key in changeable})
        return [key for key in differ if key not in changeable]


def check_role(current: BrokerSettings, settings: BrokerSettings) -> None:
    """Raises BadSetting where a master has a slave's id, a slave lacks what it needs, or the role is elected."""
    if current.etcd_endpoints:
        if (current.broker_id, current.store.broker_role) != (settings.broker_id, settings.store.broker_role):
            why = "with etcdEndpoints the master is elected; stop this one, and another takes its place"
            raise BadSetting("brokerRole", "the request", None, why)
        return
    why = settings.why_no_slave
    if settings.store.broker_role is not BrokerRole.SLAVE and settings.broker_id:
        why = "a master has brokerId=0; change both"
    if why:
        raise BadSetting("brokerRole", "the request", None, why)


def full(what: str, count: int, key: str) -> Refused:
    """Return the error for one more of `what` when there are as many as the setting `key` allows."""
    remark = f"this broker has {count} {what}, as many as {key} allows: remove some that are not needed, or raise {key}"
    return Refused(ResponseCode.SYSTEM_ERROR, remark)
