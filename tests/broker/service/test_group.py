"""Brokers that elect their master by etcd, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqbroker.wire.codes import ResponseCode
from tests.broker.bench import send_command
from tests.broker.service.group import Group


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    group = Group(tmp_path / "group")
    yield group
    group.close()


def started(group: Group, *replicas: int) -> None:
    for replica_id in replicas or (1, 2, 3):
        group.start(replica_id)
    group.master()
    group.wait_for(lambda: group.in_sync() == set(group.replicas))


def test_the_first_of_a_new_group_is_elected(group: Group) -> None:
    started(group)
    assert len(group.masters) == 1
    answer = group.client(group.master()).send(send_command("T", b"one"))
    assert answer.code == ResponseCode.SUCCESS
    group.wait(2)
    assert len({replica.log() for replica in group.alive()}) == 1


def test_another_is_elected_when_the_master_dies(group: Group) -> None:
    started(group)
    master = group.master()
    for n in range(5):
        assert group.client(master).send(send_command("T", b"%d" % n)).code == ResponseCode.SUCCESS
    group.kill(master.replica_id)
    assert group.wait_for(lambda: group.masters) <= 5.0
    new = group.master()
    assert new.replica_id != master.replica_id
    assert [record.body for record in new.records().values()] == [b"%d" % n for n in range(5)]
    assert group.client(new).send(send_command("T", b"more")).code == ResponseCode.SUCCESS
    group.start(master.replica_id)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    assert len({replica.log() for replica in group.alive()}) == 1
