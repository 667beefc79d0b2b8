"""What the brokers of a group have, and the state of the group that follows from it: see `mq ha rebuild`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from mqbroker.cli.cluster import number, runtime_info, table_lines
from mqbroker.cli.failures import Failure, failure_of
from mqbroker.errors import MQError
from mqbroker.ha.etcd import Compare, IEtcd, Put
from mqbroker.ha.group_keys import NO_LEASE, GroupError, GroupState, Identity, Member

if TYPE_CHECKING:
    from mqbroker.client.net import Net

_COLUMNS = ("id", "address", "store", "epoch", "log end", "commit point")


@attrs.frozen
class Copy:
    """What a broker that runs has. `why_not`: why its store is not whole, or that it does not answer; `has_gaps`:
    whether its log has ranges without messages, so that no other broker could copy it."""

    replica_id: int
    address: str
    why_not: str = ""
    epoch: int = 0
    lease: int = 0
    end: int = 0
    committed: int = 0
    is_master: bool = False
    has_gaps: bool = False


@attrs.frozen
class GroupKeys:
    """What etcd has of a group."""

    state: GroupState | None
    #: Revision of the group's state; 0 without one.
    revision: int
    members: Mapping[int, Member]
    identities: Sequence[Identity]


async def read_keys(etcd: IEtcd, prefix: str) -> GroupKeys:
    """What is below the prefix; of what cannot be read nothing. Raises EtcdError."""
    found = await etcd.read(prefix)
    item = found.items.get(f"{prefix}state")
    members: dict[int, Member] = {}
    identities: list[Identity] = []
    for key, value in found.items.items():
        try:
            if key.startswith(f"{prefix}members/"):
                member = Member.from_json(value.value)
                members[member.replica_id] = member
            elif key.startswith(f"{prefix}identities/"):
                identities.append(Identity.from_json(value.value))
        except GroupError:
            continue
    try:
        state = None if item is None else GroupState.from_json(item.value)
    except GroupError:
        state = None
    return GroupKeys(state, 0 if item is None else item.modified, members, identities)


async def copy_of(net: Net, member: Member) -> Copy:
    """Ask a broker what it has."""
    try:
        info = await runtime_info(net, member.address)
    except MQError as error:
        return Copy(member.replica_id, member.address, f"no answer: {failure_of(error).message}")
    keys = ("groupLogEpoch", "groupLogLease", "commitLogMaxOffset", "groupCommitted")
    numbers = [number(info.get(key)) for key in keys]
    if any(value is None for value in numbers):
        return Copy(
            member.replica_id, member.address, "it does not say what it has: it starts, or is of another version"
        )
    epoch, lease, end, committed = (value or 0 for value in numbers)
    not_whole = info.get("groupNotWhole", "")
    why_not = f"incomplete store: {not_whole}" if not_whole else ""
    is_master, has_gaps = (info.get(key) == "true" for key in ("groupIsMaster", "groupHasGaps"))
    return Copy(member.replica_id, member.address, why_not, epoch, lease, end, committed, is_master, has_gaps)


async def copies_of(net: Net, keys: GroupKeys) -> list[Copy]:
    """Ask all that have keys in etcd."""
    return [await copy_of(net, member) for _, member in sorted(keys.members.items())]


def new_state(cluster: str, broker: str, keys: GroupKeys, copies: Sequence[Copy], keep: int | None) -> GroupState:
    """The state by which one of those is elected that have all that was acknowledged, or the one to `keep`. Raises
    Failure where that is not clear."""
    if any(copy.is_master for copy in copies):
        raise Failure("the group has a master: there is nothing to rebuild")
    state = keys.state
    lowered = 0 if state is None else state.lowered
    epoch = max([copy.epoch for copy in copies] + ([] if state is None else [state.epoch]), default=0) + 1
    if keep is not None:
        chosen = [copy for copy in copies if copy.replica_id == keep and copy.epoch]
        if not chosen:
            raise Failure(f"no broker with the id {keep} says that it has a log of this group")
        if chosen[0].has_gaps:
            raise Failure(
                f"the log of broker {keep} cannot be kept, as no other broker could copy it beyond its gap "
                f"({chosen[0].why_not}): keep another one's, or restore a backup; `mq store dump` shows what it has"
            )
        committed = chosen[0].committed
        return GroupState(cluster, broker, epoch, keep, NO_LEASE, frozenset({keep}), committed, epoch, epoch)
    known = [copy.committed for copy in copies]
    known += [identity.committed for identity in keys.identities if identity.epoch >= lowered]
    committed = max([*known, 0 if state is None else state.committed])
    whole = [copy for copy in copies if not copy.why_not and copy.epoch]
    if not whole:
        raise Failure(
            "no running broker has a complete store: start the others, or choose the one to keep with --keep ID"
        )
    best = max(whole, key=lambda copy: (copy.epoch, copy.end, -copy.replica_id))
    if best.end < committed:
        raise Failure(
            f"the group has acknowledged its log up to {committed}, and the best log of a running broker ends at "
            f"{best.end}: start the broker that has it, or choose one with --keep ID; what it lacks is lost"
        )
    other = [copy for copy in whole if copy.epoch == best.epoch and copy.lease != best.lease]
    if other:
        ids = ", ".join(str(copy.replica_id) for copy in [best, *other])
        raise Failure(
            f"the brokers {ids} have different logs of epoch {best.epoch}: choose the one to keep with --keep ID"
        )
    in_sync = {copy.replica_id for copy in whole if copy.epoch == best.epoch and copy.end >= committed}
    unclean = 0 if state is None else state.unclean
    return GroupState(
        cluster, broker, epoch, best.replica_id, NO_LEASE, frozenset(in_sync), committed, unclean, lowered
    )


def copy_lines(copies: Sequence[Copy], *, on_terminal: bool) -> list[str]:
    """A line per broker."""
    rows = [
        (copy.replica_id, copy.address, copy.why_not or "whole", copy.epoch, copy.end, copy.committed)
        for copy in copies
    ]
    return table_lines(rows, _COLUMNS, on_terminal=on_terminal)


async def write_state(etcd: IEtcd, prefix: str, state: GroupState, revision: int) -> None:
    """Raises EtcdError, and Failure where another has written meanwhile."""
    key = f"{prefix}state"
    if await etcd.txn([Compare(key, revision)], [Put(key, state.to_json())]) is None:
        raise Failure("the state in etcd has changed meanwhile: nothing was written; try again")
