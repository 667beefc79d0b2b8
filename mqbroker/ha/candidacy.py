"""Whether a broker may be elected master of its group, by what etcd has and what the broker's store has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import attrs

from mqbroker.ha.epochs import EpochHistory
from mqbroker.ha.group_keys import Conflict, GroupState, Identity, Member
from mqbroker.ha.member_note import SeenInSync


@attrs.frozen
class Holdings:
    """What a broker's store has.

    `end`: where the log ends. `committed`: the commit point that it knows of, not beyond `end`.
    `why_not_whole`: why it may lack what this broker has acknowledged; empty if it does not. `has_lost_power`: whether
    that is because its machine stopped. `conflict`: see `Conflict`.
    """

    history: EpochHistory = EpochHistory()
    end: int = 0
    committed: int = 0
    why_not_whole: str = ""
    has_lost_power: bool = False
    conflict: Conflict | None = None
    has_gaps: bool = False

    @property
    def epoch(self) -> int:
        """The newest epoch of the log; 0 without one."""
        return self.history.last

    @property
    def lease(self) -> int:
        """With which the master of that epoch was elected."""
        return self.history.lease

    @property
    def written_in(self) -> int:
        """The epoch in which the log was written last."""
        return self.history.epoch_at(self.end)

    def is_against(self, other: Member) -> bool:
        """Whether the other member has the acknowledged messages, and this log has different ones in their place."""
        conflict = other.conflict if other.is_whole else None
        return conflict is not None and self.history.has(conflict.epoch, conflict.lease)


class IEpoch(Protocol):
    """An epoch of the group, and the lease with which its master was elected."""

    @property
    def epoch(self) -> int: ...

    @property
    def lease(self) -> int: ...


def why_set_back(state: IEpoch, epoch: int, lease: int) -> str:
    """Why the state is older than this broker's newest epoch, with its lease; empty if it is not."""
    if state.epoch < epoch:
        return f"etcd has epoch {state.epoch} of this group, and this broker's log is of epoch {epoch}"
    if state.epoch == epoch and state.lease != lease:
        return f"etcd has another epoch {epoch} of this group than this broker's log"
    return ""


def why_wrong(state: GroupState, holdings: Holdings, others: Mapping[int, Member]) -> str:
    """Why this state and this log allow no master in this epoch or the next one; empty if they allow one."""
    for replica_id, other in sorted(others.items()):
        if holdings.is_against(other) and other.epoch >= state.unclean:
            return (
                f"broker {replica_id} has messages that the group has acknowledged, up to {other.committed}, and this "
                "broker's log has others in their place: see the documentation of replication, `mq ha rebuild`"
            )
        why_set = why_set_back(state, other.epoch, other.lease) if other.is_known else ""
        if why_set:
            return (
                f"broker {replica_id} says: {why_set}: etcd was restored from an older state; rewrite it with `mq "
                "ha rebuild`"
            )
    return ""


def why_not_elected(
    state: GroupState, me: int, holdings: Holdings, others: Mapping[int, Member], known: Iterable[Identity] = ()
) -> str:
    """Why this broker may lack acknowledged messages, or others have more of them; empty if it may be master.

    :param others: the other members that run.
    :param known: etcd's entries of all members, running or not.
    """
    wrong = why_wrong(state, holdings, others)
    if wrong:
        return wrong
    in_sync = sorted(state.in_sync)
    if me not in state.in_sync:
        return f"this broker is not in sync: it waits for one of {in_sync}"
    if holdings.why_not_whole and not (holdings.has_lost_power or (state.is_chosen and not holdings.has_gaps)):
        return f"this broker's store is incomplete ({holdings.why_not_whole}): it waits for another of {in_sync}"
    committed = [other.committed for other in others.values() if other.is_whole and other.epoch >= state.lowered]
    if holdings.why_not_whole:
        why_not = _why_others_have_more(state, me, holdings, others)
        if why_not:
            return f"{holdings.why_not_whole}: this broker may lack what was acknowledged, and {why_not}"
    else:
        committed += [state.committed, *(each.committed for each in known if each.epoch >= state.lowered)]
    most = max(committed, default=0)
    if holdings.end < most:
        return (
            f"this broker's log ends at {holdings.end}, and the group has acknowledged its log up to {most}: it "
            "waits for another broker"
        )
    return ""


def why_not_named(state: GroupState, to: int, member: Member) -> str:
    """Why the master may not name broker `to` the next one; empty if it may.

    :param member: what that broker says of itself.
    """
    if to not in state.in_sync:
        return f"broker {to} is not in sync: wait until `mq ha status` shows that it is, or name one of those that are"
    if not member.is_whole or not member.is_known:
        return f"the store of broker {to} is incomplete: wait until it has all that the master has"
    if member.conflict is not None:
        return f"broker {to} has messages that the master lacks: `mq ha status` shows what each broker has"
    return ""


def why_not_removed(state: GroupState, replica_id: int, identity: Identity, holdings: Holdings) -> str:
    """Why a stopped broker may not be removed from the group: its store may be needed for acknowledged messages. Empty
    if it may.

    :param holdings: the master's.
    """
    if replica_id in state.in_sync:
        others = sorted(state.in_sync - {replica_id})
        return (
            f"broker {replica_id} is in sync: only it and {others} have all that was acknowledged. Start another "
            "broker, with an empty store and its own id: once `mq ha status` shows that one in sync, "
            f"{replica_id} no longer is, and can be removed"
        )
    if identity.epoch >= state.lowered and identity.committed > holdings.committed:
        return (
            f"broker {replica_id} has acknowledged messages up to {identity.committed}, and the master's commit point "
            f"is {holdings.committed}: keep its store, and see `mq ha status`"
        )
    return ""


def _why_others_have_more(state: GroupState, me: int, holdings: Holdings, others: Mapping[int, Member]) -> str:
    """If all may lack messages, all must be running, and the one with the most is elected."""
    for replica_id in sorted(state.in_sync - {me}):
        other = others[replica_id].remainder if replica_id in others else None
        if other is None or other.of != state.epoch:
            return f"waits for all of {sorted(state.in_sync)}, of which {replica_id} has not reported what it has"
        if (other.epoch, other.end, -replica_id) > (holdings.written_in, holdings.end, -me):
            return f"of those in sync {replica_id} has more"
    return ""


def why_not_unclean(holdings: Holdings, others: Mapping[int, Member]) -> str:
    """Why this broker, which may lack acknowledged messages, is not elected: another running one has more."""
    if not holdings.epoch:
        return "this broker has nothing of the group's log"
    if holdings.has_gaps:
        return "no replica could follow this broker's log beyond its gap"
    for replica_id, other in sorted(others.items()):
        if other.is_whole and (holdings.why_not_whole or other.committed > holdings.end or holdings.is_against(other)):
            return f"broker {replica_id} has more"
    return ""


def why_another(
    own: Identity, found: Identity | None, holdings: Holdings, state: GroupState | None, *, is_new: bool
) -> str:
    """Why a store cannot be the one with which this broker acknowledged messages, by the identity that etcd has for the
    broker; empty if it is.

    :param is_new: whether this start found no note of an identity in the store.
    :param state: the group's; None if it has none yet.
    """
    if found is None:
        # Of a store that is older than identities, nothing but its epochs is known.
        return "it is new in the group, and has nothing yet" if state is not None and not holdings.epoch else ""
    if found.name != own.name:
        if is_new:
            return "its disk was emptied or replaced: this broker had another store before"
        return "it is not the store that this broker had before"
    if found.generation > own.generation:
        return "it was restored from an older copy: this broker has started with a newer one since"
    lowered = 0 if state is None else state.lowered
    if holdings.end < found.committed and found.epoch >= lowered and not holdings.has_lost_power:
        return f"its log ends at {holdings.end}, and had {found.committed} before: it was restored from an older copy"
    return ""


class IOwnStore(Protocol):
    """What the election asks of this broker's store."""

    @property
    def is_open(self) -> bool:
        """Whether the store is open; nothing else may be asked while it is not."""

    @property
    def is_new(self) -> bool:
        """Whether this start found no note of an identity in the store."""

    @property
    def identity(self) -> Identity:
        """The store's."""

    @property
    def holdings(self) -> Holdings:
        """What the store has now."""

    def begin(self) -> None:
        """Count this start, durably, if it was not counted yet. Raises OSError."""

    def lose(self, why: str) -> None:
        """Note durably that the store is not whole, and give it another identity. Raises OSError."""

    @property
    def seen(self) -> SeenInSync:
        """The in-sync set of the log's newest epoch, as this broker saw it last."""

    def note_seen(self, seen: SeenInSync) -> None:
        """Note that this broker has seen it."""

    def new_nonce(self) -> str:
        """An unguessable text."""
