"""What a group of brokers keeps in etcd, as JSON: the group's state, its members that run, and the identities of their
stores. Everything read is checked: others may have written it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import attrs
import orjson

from mqbroker.errors import MQError

NUMBER_MAX = 2**63 - 1
REPLICAS_MAX = 64
#: Not a valid lease of etcd: no broker is master by it, and an election follows.
NO_LEASE = 1
#: Version of state and identities. Those of a later version are ignored.
VERSION = 1


class GroupError(MQError):
    """This broker cannot take part in its group; the text says why and what to do."""


@attrs.frozen
class GroupState:
    """The group's state in etcd. `committed`: the commit point when it was written; any broker that is elected has the
    log below it. `unclean`: the newest epoch whose master was elected by uncleanElectionEnable, though others may have
    more; `lowered`: the newest from which on commit points may be lower than before, as all that were in sync had lost
    something; `switched`: the newest whose master the former one named; 0 if there is none."""

    cluster: str
    broker: str
    epoch: int
    master: int
    lease: int
    in_sync: frozenset[int]
    committed: int = 0
    unclean: int = 0
    lowered: int = 0
    switched: int = 0

    @property
    def is_chosen(self) -> bool:
        """Whether an operator has chosen whose log is kept, by `mq ha rebuild --keep`, and no master is elected yet."""
        return self.lease == NO_LEASE and self.unclean == self.epoch

    def to_json(self) -> bytes:
        return orjson.dumps({"version": VERSION, **attrs.asdict(self), "in_sync": sorted(self.in_sync)})

    @classmethod
    def from_json(cls, data: bytes) -> GroupState:
        """Raises GroupError."""
        row = _object(data)
        epoch, master, lease = row.get("epoch"), row.get("master"), row.get("lease")
        in_sync = row.get("in_sync")
        is_good = isinstance(in_sync, list) and 0 < len(in_sync) <= REPLICAS_MAX
        if not is_good or not all(map(_is_number, [epoch, master, lease, *(in_sync or ())])):
            raise GroupError("an epoch, id or lease is missing, or is not an integer above 0")
        names = str(row.get("cluster")), str(row.get("broker"))
        numbers = cast(int, epoch), cast(int, master), cast(int, lease)
        counts = _counts(row, "committed", "unclean", "lowered", "switched")
        return cls(*names, *numbers, frozenset(in_sync or ()), *counts)


@attrs.frozen(order=True)
class Remainder:
    """What a power cut has left of a log. `of`: the newest epoch of the group when this was written, which had no
    master any more: nothing is added. `epoch` and `end`: in which epoch the log was written last, and where it ends."""

    of: int
    epoch: int
    end: int


@attrs.frozen
class Conflict:
    """A broker's log has messages below its commit point that the log of the master of this epoch lacks."""

    epoch: int
    lease: int


@attrs.frozen
class Member:
    """A broker of the group that runs.

    `ha_address`: where it serves replicas when it is master. `remainder`: what a power cut has left of its log; None of
    any other, or while there is a master. `nonce`: by which it proves itself to the others. `epoch`, `lease`,
    `committed`: the newest epoch of its log, with its master's lease, and its commit point, when this was written.
    `is_whole`: whether its store has all that it ever acknowledged; `is_known`: whether etcd has its identity, and
    its epochs are its own.
    """

    replica_id: int
    address: str
    ha_address: str
    remainder: Remainder | None = None
    nonce: str = ""
    epoch: int = 0
    lease: int = 0
    committed: int = 0
    is_whole: bool = True
    is_known: bool = True
    conflict: Conflict | None = None

    def to_json(self) -> bytes:
        return orjson.dumps({name: value for name, value in attrs.asdict(self).items() if value is not None})

    @classmethod
    def from_json(cls, data: bytes) -> Member:
        """Raises GroupError."""
        row = _object(data)
        replica_id, address, ha_address = row.get("replica_id"), row.get("address"), row.get("ha_address")
        if not (_is_number(replica_id) and isinstance(address, str) and isinstance(ha_address, str)):
            raise GroupError("an id or address is missing")
        nonce = row.get("nonce", "")
        if not isinstance(nonce, str):
            raise GroupError("its nonce is not text")
        remainder, conflict = row.get("remainder"), row.get("conflict")
        epoch, lease, committed = _counts(row, "epoch", "lease", "committed")
        return cls(
            cast(int, replica_id),
            address,
            ha_address,
            None if remainder is None else Remainder(*_numbers(remainder, "of", "epoch", "end")),
            nonce,
            epoch,
            lease,
            committed,
            row.get("is_whole", True) is True,
            row.get("is_known", True) is True,
            None if conflict is None else Conflict(*_numbers(conflict, "epoch", "lease")),
        )


@attrs.frozen
class Identity:
    """Which store a member has. `name`: 32 hexadecimal digits, made at random with the store. `generation`: goes up
    with each start. `committed`: the commit point that the member knew of when this was written, a second or two ago
    while it runs; `epoch`: the newest of its log then."""

    name: str
    generation: int
    committed: int = 0
    epoch: int = 0

    def to_json(self) -> bytes:
        return orjson.dumps({"version": VERSION, **attrs.asdict(self)})

    @classmethod
    def from_json(cls, data: bytes) -> Identity:
        """Raises GroupError."""
        row = _object(data)
        name = row.get("name")
        if not isinstance(name, str) or len(name) != 32:
            raise GroupError("the name of the store is missing")
        return cls(name, *_counts(row, "generation", "committed", "epoch"))


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        row = orjson.loads(data)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise GroupError("it is not a JSON object")
    version = row.get("version", VERSION)
    if version != VERSION:
        raise GroupError(
            f"it is of version {str(version)[:20]}, which a later mqbroker wrote: start that one here, too"
        )
    return row


def _is_number(value: object) -> bool:
    return type(value) is int and 0 < value <= NUMBER_MAX


def _checked(values: Iterable[object]) -> list[int]:
    found = list(values)
    if not all(type(value) is int and 0 <= value <= NUMBER_MAX for value in found):
        raise GroupError("what it says of a log is not in whole numbers")
    return cast(list[int], found)


def _counts(row: Mapping[str, Any], *names: str) -> list[int]:
    """Whole numbers; 0 where one is missing."""
    return _checked(row.get(name, 0) for name in names)


def _numbers(row: object, *names: str) -> list[int]:
    return _checked(row.get(name) if isinstance(row, dict) else None for name in names)
