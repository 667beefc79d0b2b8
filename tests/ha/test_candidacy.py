"""Who may be elected, by what etcd has and what a store has."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from mqbroker.ha.candidacy import (
    Holdings,
    why_another,
    why_not_elected,
    why_not_named,
    why_not_removed,
    why_not_unclean,
    why_set_back,
)
from mqbroker.ha.epochs import Epoch, EpochHistory
from mqbroker.ha.group_keys import Conflict, GroupError, GroupState, Identity, Member

STATE = GroupState("C", "B", 3, 1, 33, frozenset({1, 2}), committed=500)
HISTORY = EpochHistory((Epoch(1, 0, 11), Epoch(3, 100, 33)))
WHOLE = Holdings(HISTORY, 600, 500)
NAME, OTHER = "a" * 32, "b" * 32


def member(replica_id: int, **changes: Any) -> Member:
    return attrs.evolve(Member(replica_id, "a", "h", None, "nonce", 3, 33, 500), **changes)


def test_one_of_the_set_that_has_all_may_be_elected() -> None:
    assert why_not_elected(STATE, 2, WHOLE, {}) == ""
    assert "not in sync" in why_not_elected(STATE, 3, WHOLE, {})


def test_a_store_that_is_not_whole_is_not_elected() -> None:
    lost = attrs.evolve(WHOLE, why_not_whole="its disk was emptied")
    assert "incomplete (its disk was emptied)" in why_not_elected(STATE, 2, lost, {})


@pytest.mark.parametrize(
    ("state", "others", "known"),
    [
        (attrs.evolve(STATE, committed=601), {}, []),
        (STATE, {3: member(3, committed=601)}, []),
        (STATE, {}, [Identity(NAME, 1, 601, 3)]),
    ],
)
def test_nobody_is_elected_whose_log_ends_below_a_commit_point(
    state: GroupState, others: dict[int, Member], known: list[Identity]
) -> None:
    assert "the group has acknowledged its log up to 601" in why_not_elected(state, 2, WHOLE, others, known)


def test_a_commit_point_from_before_all_lost_something_counts_no_more() -> None:
    known = [Identity(NAME, 1, 601, 3)]
    assert why_not_elected(attrs.evolve(STATE, lowered=4), 2, WHOLE, {}, known) == ""
    store = Identity(OTHER, 1)
    former = Identity(OTHER, 1, 601, 3)
    assert "its log ends at 600" in why_another(store, former, WHOLE, STATE, is_new=False)
    assert why_another(store, former, WHOLE, attrs.evolve(STATE, lowered=4), is_new=False) == ""


def test_nobody_is_elected_whose_log_lacks_what_another_one_knows_to_be_acknowledged() -> None:
    against = {3: member(3, conflict=Conflict(3, 33))}
    assert "`mq ha rebuild`" in why_not_elected(STATE, 2, WHOLE, against)
    assert "more" in why_not_unclean(WHOLE, against)
    older = attrs.evolve(WHOLE, history=EpochHistory(HISTORY.epochs[:1]))
    assert why_not_elected(STATE, 2, older, against) == ""  # it has nothing of that epoch
    unsure = {3: member(3, conflict=Conflict(3, 33), is_whole=False)}
    assert why_not_elected(STATE, 2, WHOLE, unsure) == ""


@pytest.mark.parametrize(
    ("other", "is_told"),
    [
        (member(3, epoch=4, lease=44), True),
        (member(3, epoch=3, lease=44), True),
        (member(3, epoch=2, lease=22), False),
        (member(3, epoch=4, lease=44, is_whole=False), True),  # it lost power, but not its epochs
        (member(3, epoch=4, lease=44, is_known=False), False),  # a store of another group
    ],
)
def test_nobody_is_elected_while_one_runs_that_knows_a_later_epoch(other: Member, is_told: bool) -> None:
    assert ("etcd was restored from an older state" in why_not_elected(STATE, 2, WHOLE, {3: other})) == is_told


def test_epochs_only_go_up() -> None:
    assert why_set_back(STATE, 3, 33) == ""
    assert why_set_back(STATE, 2, 99) == ""
    assert "has epoch 3 of this group, and this broker's log is of epoch 4" in why_set_back(STATE, 4, 44)
    assert "another epoch 3" in why_set_back(STATE, 3, 34)


@pytest.mark.parametrize(
    ("own", "found", "is_new", "why"),
    [
        (Identity(NAME, 5), Identity(NAME, 5), False, ""),
        (Identity(NAME, 6), Identity(NAME, 5), False, ""),
        (Identity(NAME, 4), Identity(NAME, 5), False, "restored from an older copy"),
        (Identity(NAME, 1), Identity(OTHER, 5), True, "emptied or replaced"),
        (Identity(NAME, 9), Identity(OTHER, 5), False, "not the store that this broker had"),
        (Identity(NAME, 5), Identity(NAME, 5, 601, 3), False, "had 601 before"),
        (Identity(NAME, 5), None, False, ""),
    ],
)
def test_another_store_than_the_one_that_etcd_knows(own: Identity, found: Identity, is_new: bool, why: str) -> None:
    told = why_another(own, found, WHOLE, STATE, is_new=is_new)
    assert why in told
    assert bool(told) == bool(why)


def test_a_new_store_in_a_group_has_nothing_yet() -> None:
    empty = Holdings()
    assert "new in the group" in why_another(Identity(NAME, 1), None, empty, STATE, is_new=True)
    assert why_another(Identity(NAME, 1), None, empty, None, is_new=True) == ""


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b'{"name":1}', b'{"name":"%s","generation":-1}' % NAME.encode(),
        b'{"name":"%s","generation":1e3}' % NAME.encode(), b'{"name":"%s","committed":"9"}' % NAME.encode(),
        b'{"name":"%s","generation":9223372036854775808}' % NAME.encode(),
        b'{"version":2,"name":"%s","generation":1}' % NAME.encode(),
    ],
)  # fmt: skip
def test_what_is_no_identity_is_refused(data: bytes) -> None:
    with pytest.raises(GroupError):
        Identity.from_json(data)


def test_what_a_later_version_wrote_is_not_understood() -> None:
    identity = Identity(NAME, 3, 4, 5)
    assert Identity.from_json(identity.to_json()) == identity
    for kind, value in ((GroupState, STATE), (Identity, identity)):
        with pytest.raises(GroupError, match="of version 2, which a later mqbroker wrote"):
            kind.from_json(value.to_json().replace(b'"version":1', b'"version":2'))


def test_the_next_master_is_one_in_sync_that_is_whole() -> None:
    assert why_not_named(STATE, 2, member(2)) == ""
    assert "is not in sync: wait" in why_not_named(STATE, 3, member(3))
    for lacking in ({"is_whole": False}, {"is_known": False}):
        assert "is incomplete: wait" in why_not_named(STATE, 2, member(2, **lacking))
    assert "has messages that the master lacks" in why_not_named(STATE, 2, member(2, conflict=Conflict(3, 33)))


def test_a_member_is_forgotten_that_has_nothing_which_the_group_needs() -> None:
    assert why_not_removed(STATE, 3, Identity(NAME, 1, 500, 3), WHOLE) == ""
    assert "only it and [1] have all" in why_not_removed(STATE, 2, Identity(NAME, 1, 0, 3), WHOLE)
    assert "up to 501, and the master's commit point is 500" in why_not_removed(
        STATE, 3, Identity(NAME, 1, 501, 3), WHOLE
    )
    lowered = attrs.evolve(STATE, lowered=3)
    assert why_not_removed(lowered, 3, Identity(NAME, 1, 501, 2), WHOLE) == ""
