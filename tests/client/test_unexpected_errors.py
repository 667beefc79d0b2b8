"""What no code expects, such as a lack of memory, ends no loop of a client: it is logged with its traceback, and tried
again."""

from __future__ import annotations

import threading
from itertools import pairwise
from time import monotonic
from typing import Any

import pytest

from mqbroker.client.consume_service import ConsumeService
from mqbroker.client.listeners import ConsumeResult, OrderlyResult
from mqbroker.wire.codes import RequestCode
from tests.client.member import Member, Q
from tests.client.test_thread_calls import COUNT, Consuming
from tests.client.world import World


def out_of_memory(*_: object) -> Any:
    raise MemoryError


async def out_of_memory_later(*_: object) -> Any:
    raise MemoryError


def errors(caplog: pytest.LogCaptureFixture) -> int:
    return [record.exc_info and record.exc_info[0] for record in caplog.records].count(MemoryError)


def test_a_member_beats_and_balances_again(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member(one_queue, name_server).start()
    core: Any = member.core
    for owner, name, code in (
        (core._membership.heartbeats, "requests", RequestCode.HEART_BEAT),
        (core._membership, "balance", RequestCode.GET_CONSUMER_LIST_BY_GROUP),
    ):
        for _ in range(2):  # the second time is as the first
            before = errors(caplog)
            monkeypatch.setattr(owner, name, out_of_memory)
            one_queue.clock.pump([0.5] * 90)
            assert errors(caplog) > before
            monkeypatch.undo()
            asked = len(one_queue.faults.asked(code))
            one_queue.clock.pump([0.5] * 90)
            assert len(one_queue.faults.asked(code)) > asked
    one_queue.cluster.store(Q, b"later")
    one_queue.clock.pump([0.5] * 4)
    assert member.bodies == [b"later"]
    one_queue.result(core.close())


def test_a_member_that_could_not_come_back_does_so_later(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member(one_queue, name_server).start()
    monkeypatch.setattr(member.core._watch, "_come_back", out_of_memory)
    one_queue.cluster.reactor.rightNow += 200
    one_queue.clock.pump([0.5] * 10)
    assert errors(caplog) > 0
    assert member.core._watch.was_away
    monkeypatch.undo()
    one_queue.clock.pump([0.5] * 10)
    assert not member.core._watch.was_away
    one_queue.result(member.core.close())


def test_messages_that_wait_for_a_member_to_come_back_are_handed_out_then(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member(one_queue, name_server).start()
    one_queue.clock.pump([0.5] * 4)
    for body in (b"first", b"second"):  # the second time is as the first
        monkeypatch.setattr(member.core._watch, "_come_back", out_of_memory)
        one_queue.cluster.reactor.rightNow += 200
        one_queue.cluster.store(Q, body)
        before = errors(caplog)
        one_queue.clock.pump([0.5] * 10)
        assert errors(caplog) > before
        assert body not in member.bodies
        monkeypatch.undo()
        one_queue.clock.pump([0.5] * 30)
        assert member.bodies[-1] == body
    one_queue.result(member.core.close())


def test_a_message_that_cannot_be_sent_back_comes_again_and_the_others_too(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listener(message: Any) -> Any:
        return ConsumeResult.RETRY if message.body == b"no" and len(member.got) == 1 else None

    member = Member(one_queue, name_server, listener=listener).start()
    monkeypatch.setattr(member.core.consuming, "_send_back", out_of_memory_later)
    one_queue.cluster.store(Q, b"no")
    one_queue.clock.pump([0.5] * 20)
    one_queue.cluster.store(Q, b"other")
    one_queue.clock.pump([0.5] * 20)
    assert member.bodies == [b"no", b"no", b"other"]
    assert errors(caplog) == 1
    one_queue.result(member.core.close())


def test_a_queue_whose_lock_cannot_be_asked_for_goes_on_later(
    one_queue: World, name_server: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listener(message: Any) -> Any:
        if len(member.got) == 1:
            locks.forget()
            monkeypatch.setattr(locks, "lock", out_of_memory_later)
            return OrderlyResult.SUSPEND
        return None

    member = Member(one_queue, name_server, listener=listener, orderly=True).start()
    locks: Any = member.core._locks
    one_queue.cluster.store(Q, b"m")
    one_queue.clock.pump([0.5] * 20)
    assert len(member.got) == 1
    assert errors(caplog) > 0
    monkeypatch.undo()
    one_queue.clock.pump([0.5] * 20)
    assert member.bodies == [b"m", b"m"]
    one_queue.result(member.core.close())


def test_a_thread_of_the_listener_goes_on(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    consuming, failures = Consuming(hang={COUNT - 1}), [MemoryError()]
    take = ConsumeService._take

    def fail_once(service: ConsumeService) -> Any:
        if failures:
            raise failures.pop()
        return take(service)

    async def nothing() -> None:
        """It is waited for all of them."""

    monkeypatch.setattr(ConsumeService, "_take", fail_once)
    consuming.run(nothing)
    assert consuming.seen == list(range(COUNT))
    assert errors(caplog) == 1


def test_where_no_thread_can_be_started_it_is_tried_again_after_a_pause(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqbroker.client.thread_calls._NO_THREAD_S", 0.05)
    consuming, failures = Consuming(hang={COUNT - 1}), [RuntimeError("can't start new thread")] * 2
    start, tried_at = threading.Thread.start, list[float]()

    def fail_twice(thread: threading.Thread) -> None:
        if thread.name.startswith("mq-listen"):
            tried_at.append(monotonic())
            if failures:
                raise failures.pop()
        start(thread)

    async def nothing() -> None:
        """It is waited for all of them."""

    monkeypatch.setattr(threading.Thread, "start", fail_twice)
    consuming.run(nothing)
    assert consuming.seen == list(range(COUNT))
    assert [record.levelname for record in caplog.records if "no thread" in record.getMessage()] == ["WARNING"] * 2
    assert len(tried_at) == 3
    assert min(later - earlier for earlier, later in pairwise(tried_at)) > 0.04
