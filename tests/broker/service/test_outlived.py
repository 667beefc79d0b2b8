"""Replicas that were away for longer than their master keeps messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.store.message_store import MessageStore
from tests.broker.bench import send_command
from tests.broker.service.group import Group
from tests.broker.service.pair import Member, Pair
from tests.broker.service.test_slave import info
from tests.remoting.logs import Logged, log_kept

SAYS = "this broker was down for longer than its master keeps messages (fileReservedTime)"


@pytest.fixture(autouse=True)
def logged() -> Iterator[Logged]:
    with log_kept() as events:
        yield events


def fill(client: Any, count: int) -> None:
    client.ask_all(*(send_command("T", b"x" * 4000) for _ in range(count)))


def send(group: Group, count: int) -> None:
    group.client(group.master()).tell(*(send_command("T", b"x" * 4000) for _ in range(count)))
    group.wait(1)


def delete_first(store: MessageStore, turn: Callable[[], object]) -> None:
    """Delete the first segment, as when its messages are too old."""
    segments = store._retention.segments
    segment = segments.oldest()
    assert segment is not None
    found: list[Any] = []
    Deferred.fromCoroutine(segments.delete(segment)).addBoth(found.append)
    turn()
    assert found == [True]


def outlive(pair: Pair, **settings: Any) -> tuple[Member, Member]:
    """A master that has deleted what its slave would go on with; and the slave, which has come back."""
    master, _ = pair.master(**settings), pair.slave(**settings)
    pair.turn(2)
    fill(master.client(), 5)
    pair.turn(2)
    pair.stop("slave1")
    for _ in range(5):
        fill(master.client(), 15)
        pair.turn(1)
    while master.store.log_min_offset < 2 * 64 * 1024:
        delete_first(master.store, lambda: pair.turn(1))
    slave = pair.slave(**settings)
    pair.turn(3)
    return master, slave


@pytest.fixture
def secret(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "secret"
    path.write_bytes(b"of 32 random bytes, or of letters\n")
    return {"ha_secret_file": str(path)}


def test_a_slave_says_plainly_that_it_was_away_too_long(pair: Pair, logged: Logged) -> None:
    master, slave = outlive(pair)
    shown = info(slave)[f"haMaster_{master.addresses[1]}"]
    begin = master.store.log_min_offset
    assert f"this log ends at {slave.store.log_end}, and the master's begins at {begin}: {SAYS}" in shown
    assert "set haResyncEnable=true" in shown
    assert any(SAYS in line for line in logged.lines)
    assert slave.store.log_end < begin


def test_with_its_setting_it_copies_all_that_its_master_has(pair: Pair, logged: Logged) -> None:
    master, slave = outlive(pair, ha_resync_enable=True)
    former = slave.root / "commitlog"
    pair.turn(30)
    assert master.store.log_min_offset > 0
    assert slave.log() == master.log()
    assert slave.store.min_offset("T", 0) == master.store.min_offset("T", 0)
    [aside] = former.parent.glob("commitlog.outlived-*")
    [line] = [each for each in logged.lines if "put aside, and kept for 7 days" in each]
    assert str(aside) in line
    fill(master.client(), 5)
    pair.turn(2)
    assert slave.log() == master.log()


def test_without_name_servers_a_master_that_knows_the_secret_says_it(
    pair: Pair, secret: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "mqbroker.broker.broker_slave.BrokerSlave.on_master",
        lambda self, ha_address, *_, **__: self._service.follow(ha_address),
    )
    monkeypatch.setattr("mqbroker.ha.divergence.LogComparison.check", only_bounds)
    master, slave = outlive(pair, ha_resync_enable=True, **secret)
    pair.turn(30)
    assert slave.log() == master.log()
    assert slave.log()[0] > 0


async def only_bounds(self: Any, bounds: tuple[int, int] | None = None) -> None:
    assert bounds is not None
    self.check_begin(bounds[0])


def test_a_replica_of_a_group_does_it_by_itself(tmp_path: Path, logged: Logged) -> None:
    group = Group(tmp_path / "group", is_disk_simulated=True)
    for replica_id in (1, 2, 3):
        group.start(replica_id)
    group.wait_for(lambda: group.masters and group.in_sync() == {1, 2, 3})
    master = group.master()
    send(group, 5)
    away = min({1, 2, 3} - {master.replica_id})
    group.wait(1)
    group.kill(away)
    group.wait(3)
    for _ in range(5):
        send(group, 15)
    while master.store.log_min_offset < 2 * 64 * 1024:
        delete_first(master.store, lambda: group.wait(0.5))
    again = group.start(away)
    group.wait_for(lambda: group.in_sync() == {1, 2, 3}, 40)
    assert any(SAYS in line for line in logged.lines)
    assert (again.store.log_min_offset, again.store.log_end) == (master.store.log_min_offset, master.store.log_end)
    assert [name for name in again.disk.names("/store") if name.startswith("commitlog.outlived-")]
    group.close()
