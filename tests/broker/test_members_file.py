"""Members of consumer groups over a restart of the broker."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from twisted.internet.task import Clock

from mqbroker.broker import members_file
from mqbroker.broker.client_registry import ConsumerRegistry
from mqbroker.broker.members_file import AGE_SECONDS_MAX, EXPECTED_SECONDS, SAVE_SECONDS, MembersFile
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.bodies import SubscriptionData
from tests.broker.bench import FakeConnection, live_settings
from tests.broker.test_client_registry import beat, connections, notified
from tests.remoting.logs import Logged


@attrs.define
class Run:
    """A broker's life, as far as members go."""

    clock: Clock
    steady: Clock
    consumers: ConsumerRegistry
    file: MembersFile
    gone: list[str]

    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds / SAVE_SECONDS)):
            self.clock.advance(SAVE_SECONDS)
            self.steady.advance(SAVE_SECONDS)
            self.file.look()

    def stop(self) -> None:
        self.file.freeze()
        assert self.file.save().called

    def ids(self, group: str = "CG") -> list[str]:
        known = self.consumers.known(group)
        return [] if known is None else known.client_ids()


@pytest.fixture
def begin(tmp_path: Path, clock: Clock) -> Callable[[], Run]:
    clock.advance(1_700_000_000)

    def begin() -> Run:
        gone: list[str] = []
        steady = Clock()
        consumers = ConsumerRegistry(clock, live_settings(), gone.append)
        path = str(tmp_path / "config" / "consumerMembers.json")
        return Run(
            clock,
            steady,
            consumers,
            MembersFile(JsonFile(path, InlineWorker(), OsDisk()), consumers, clock.seconds, steady.seconds),
            gone,
        )

    return begin


def joined(run: Run, *client_ids: str, group: str = "CG") -> list[FakeConnection]:
    made = connections(len(client_ids))
    for connection, client_id in zip(made, client_ids, strict=True):
        beat(run.consumers, connection, client_id, SubscriptionData("T", "A", sub_version=7), group=group)
    return made


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_members_are_expected_after_a_restart_and_take_their_places_unnoticed(
    begin: Callable[[], Run], how: str
) -> None:
    """Not only the first time: those that came back are expected after the next restart."""
    run = begin()
    joined(run, "a", "b", "c")
    for _ in range(3):
        if how == "stopped":
            run.stop()
        else:
            run.wait(SAVE_SECONDS)
        run = begin()
        assert sorted(run.ids()) == ["a", "b", "c"]
        assert run.consumers.group("CG") is None
        assert run.consumers.names() == []
        known = run.consumers.known("CG")
        assert known is not None
        assert known.subscriptions == {"T": SubscriptionData("T", "A", sub_version=7)}
        run.clock.advance(10)
        b, a = joined(run, "b", "a")
        assert notified(run.clock, a, b) == [0, 0]
        assert sorted(run.ids()) == ["a", "b", "c"]
        (c,) = joined(run, "c")
        run.wait(EXPECTED_SECONDS)
        assert notified(run.clock, a, b, c) == [0, 0, 0]
        assert sorted(run.ids()) == ["a", "b", "c"]
        run.consumers.unregister(c, "CG")
        assert notified(run.clock, a, b) == [1, 1]
        joined(run, "c")


def test_who_does_not_come_back_is_removed_and_the_others_hear_of_it(begin: Callable[[], Run]) -> None:
    run = begin()
    joined(run, "a", "gone")
    joined(run, "x", group="Other")
    run.stop()
    run = begin()
    (a,) = joined(run, "a")
    run.wait(EXPECTED_SECONDS - SAVE_SECONDS)
    assert run.ids() == ["a", "gone"]
    assert (notified(run.clock, a), run.gone) == ([0], [])
    run.wait(SAVE_SECONDS)
    assert (run.ids(), run.ids("Other")) == (["a"], [])
    assert (notified(run.clock, a), run.gone) == ([1], ["Other"])
    assert run.consumers.known("Other") is None


def test_who_leaves_in_order_before_its_first_heartbeat_is_expected_no_more(begin: Callable[[], Run]) -> None:
    run = begin()
    joined(run, "a", "b")
    run.stop()
    run = begin()
    (a,) = joined(run, "a")
    run.consumers.leave_before_joining("b", "CG")
    run.consumers.leave_before_joining("b", "CG")
    run.consumers.leave_before_joining("b", "None")
    assert run.ids() == ["a"]
    assert notified(run.clock, a) == [1]


def test_connections_that_close_because_the_broker_stops_change_nothing(begin: Callable[[], Run]) -> None:
    run = begin()
    for connection in joined(run, "a", "b"):
        run.file.freeze()
        run.consumers.connection_closed(connection)
    run.stop()
    assert begin().ids() == ["a", "b"]


def test_members_of_long_ago_are_not_expected(begin: Callable[[], Run]) -> None:
    run = begin()
    joined(run, "a")
    run.wait(900)  # it is written from time to time, though nobody comes or goes
    run.clock.advance(AGE_SECONDS_MAX - 60)
    assert begin().ids() == ["a"]
    run.clock.advance(61)
    assert begin().ids() == []
    run.clock.advance(-10_000)
    assert begin().ids() == []


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"savedAtMs":1}', b"\0" * 100, b'{"savedAtMs":1,"groups":[{}]}'])
def test_a_damaged_file_prevents_no_start(
    begin: Callable[[], Run], tmp_path: Path, logged: Logged, data: bytes
) -> None:
    begin().stop()
    path = tmp_path / "config" / "consumerMembers.json"
    path.write_bytes(data)
    assert begin().ids() == []
    assert "are unknown until their next heartbeats" in logged.lines[-1]


@pytest.mark.parametrize("kind", ["directory", "link to itself", "bad sector"])
def test_a_file_that_cannot_be_read_prevents_no_start(
    begin: Callable[[], Run], tmp_path: Path, logged: Logged, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    begin().stop()
    path = tmp_path / "config" / "consumerMembers.json"
    if kind == "bad sector":

        def fail(disk: OsDisk, path: str) -> bytes:
            raise OSError(errno.EIO, "Input/output error", path)

        monkeypatch.setattr(OsDisk, "read", fail)
    else:
        path.unlink()
        path.mkdir() if kind == "directory" else path.symlink_to(path)
    assert begin().ids() == []
    assert "are unknown until their next heartbeats" in logged.lines[-1]


@pytest.mark.parametrize("name", ["open", "pwrite", "fsync", "link", "replace"])
def test_members_stay_those_of_the_last_save_where_a_call_of_the_next_one_fails(
    begin: Callable[[], Run], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run = begin()
    joined(run, "c1")
    run.wait(SAVE_SECONDS)
    joined(run, "c1", "c2")
    calls = []
    with monkeypatch.context() as failing:

        def fail(*given: object, **named: object) -> None:
            calls.append(given)
            raise OSError(errno.EIO, "Input/output error")

        failing.setattr(os, name, fail)
        run.wait(SAVE_SECONDS)
    assert calls
    assert begin().ids() in (["c1"], ["c1", "c2"])  # killed now
    run.wait(60.0)
    assert begin().ids() == ["c1", "c2"]


def test_what_does_not_fit_is_left_out(begin: Callable[[], Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members_file, "BYTES_MAX", 1000)
    run = begin()
    joined(run, "a")
    joined(run, *[f"{n:0250}" for n in range(4)], group="Large")
    joined(run, "x", group="Small")
    run.stop()
    run = begin()
    assert (run.ids(), run.ids("Large"), run.ids("Small")) == (["a"], [], ["x"])


def test_a_clock_that_is_set_changes_nothing_for_those_who_are_expected(begin: Callable[[], Run]) -> None:
    run = begin()
    joined(run, "a")
    run.stop()
    run = begin()
    run.clock.advance(3600)
    run.file.look()
    assert run.ids() == ["a"]
    run.clock.advance(-7200)
    run.wait(EXPECTED_SECONDS)
    assert run.ids() == []


def test_a_client_that_comes_with_another_subscription_is_noticed(begin: Callable[[], Run]) -> None:
    run = begin()
    joined(run, "a", "b")
    run.stop()
    run = begin()
    (a,) = joined(run, "a")
    (b,) = connections(1)
    beat(run.consumers, b, "b", SubscriptionData("T"), SubscriptionData("U"))
    assert notified(run.clock, a, b) == [1, 1]


def test_the_file_is_written_soon_each_time_that_members_change_and_else_once_a_minute(
    begin: Callable[[], Run], tmp_path: Path
) -> None:
    run = begin()
    path = tmp_path / "config" / "consumerMembers.json"
    joined(run, "first")
    run.wait(SAVE_SECONDS)
    for number in range(1, 4):
        path.unlink()
        run.wait(members_file.SAVE_SECONDS_MAX - 2 * SAVE_SECONDS)
        assert not path.exists(), "nothing has changed"
        (connection,) = joined(run, f"c{number}")
        run.wait(SAVE_SECONDS)
        assert f"c{number}" in path.read_text()
        run.consumers.unregister(connection, "CG")
        run.wait(SAVE_SECONDS)
        assert f"c{number}" not in path.read_text()
    path.unlink()
    run.wait(members_file.SAVE_SECONDS_MAX - SAVE_SECONDS)
    assert not path.exists()
    run.wait(SAVE_SECONDS)
    assert path.exists()
