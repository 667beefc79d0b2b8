"""Dispatch and index in steps: a turn ends when its time is over, the result is the same, and who sends much works for
it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mqbroker.kernel import compiled
from mqbroker.store import MessageStore, consumequeue_dispatcher, dispatch, index
from mqbroker.wire.record import NewMessage
from tests.store.harness import Bench, message, now, tree

MULTI = {"enable_multi_dispatch": True, "enable_lmq": True, "max_lmq_consume_queue_num": 10_000}
EXT = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 10_000}
MANY = {"max_hash_slot_num": 1000, "max_index_num": 30_000, "mapped_file_size_commit_log": 4 << 20}


def with_keys(count: int, first: int = 0, topic: str = "T", queue_id: int = 0) -> NewMessage:
    keys = " ".join(f"{first + number:x}" for number in range(count))
    return message(topic, queue_id, properties=f"UNIQ_KEY\x01u{first}\x02KEYS\x01{keys}".encode())


def any_messages(rng: Random, multi: bool) -> list[NewMessage]:
    found = []
    for number in range(200):
        if multi and rng.random() < 0.2:
            names = ",".join(f"%LMQ%{rng.randrange(50)}" for _ in range(rng.choice([1, 3, 40])))
            properties = f"KEYS\x01k{number}\x02INNER_MULTI_DISPATCH\x01{names}".encode()
            found.append(message("T", rng.randrange(4), properties=properties))
        else:
            found.append(with_keys(rng.choice([0, 1, 2, 500]), 1000 * number, rng.choice("TU"), rng.randrange(5)))
    return found


class Slow:
    """The clock of a store's dispatcher, by which time passes at each look: what is done in between took that long."""

    def __init__(self, store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._clock: Any = store._dispatcher._clock
        self._passed = 0.0
        self.turns = 0
        monkeypatch.setattr(store._dispatcher, "_clock", self)

    def seconds(self) -> float:
        self._passed += dispatch.TURN_S
        return float(self._clock.seconds() + self._passed)

    def callLater(self, delay: float, call: Any, *args: Any) -> Any:
        self.turns += 1
        return self._clock.callLater(delay, call, *args)


def dispatched(bench: Bench, store: MessageStore, turns_max: int = 5000) -> int:
    """Let turns pass until all is dispatched and indexed; returns how many it took."""
    for count in range(turns_max):
        calls: Any = bench.clock.getDelayedCalls()
        if store._dispatcher.offset == store.log_end and not store._dispatcher._is_index_behind:
            return count
        due = min(call.getTime() for call in calls if call.func == store._dispatcher._turn)
        bench.clock.advance(max(0.0, due - bench.clock.rightNow))
    raise AssertionError("it never ends")


@pytest.mark.parametrize("is_general", [False, True])
@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_dispatched_in_steps_is_the_same(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, seed: int, multi: bool, is_general: bool
) -> None:
    trees: list[dict[str, bytes]] = []
    counts = []
    for is_slow in (False, True):
        rng = Random(seed)
        with monkeypatch.context() as patched:
            if is_general:
                for module in (consumequeue_dispatcher, index):
                    patched.setattr(module, "compiled", None)
            bench = make(f"store-{is_slow}", **EXT, **MANY, **(MULTI if multi else {}))
            store = bench.open()
            store.make_bit_maps(lambda topic: lambda properties: bytes((len(properties) % 256, 1)))
            store.start()
            for part in range(4):
                messages = any_messages(rng, multi)
                while messages:
                    count = rng.choice([1, 5, 60])
                    store.append(messages[:count])
                    del messages[:count]
                if part == 2:
                    store._commit_log.dispatch_queue.clear()  # read from the log
            if is_slow:
                Slow(store, patched)
            counts.append(dispatched(bench, store))
            bench.close()
        trees.append({})
        for folder in ("consumequeue", "consumequeue_ext"):
            trees[-1] |= {f"{folder}/{name}": data for name, data in tree(bench.root / folder).items()}
        # Named by the time when they were made.
        trees[-1] |= {f"index-{number}": data for number, data in enumerate(tree(bench.root / "index").values())}
    assert counts[1] > 10 * counts[0]
    assert list(map(sorted, trees)) == [sorted(trees[0])] * 2
    assert trees[0] == trees[1]


@pytest.mark.skipif(compiled is None, reason="the compiled module is not there")
def test_messages_of_thousands_of_keys_are_indexed_by_the_compiled_module(
    bench: Bench, make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    general = []
    add_rows = index.Index._add_rows
    monkeypatch.setattr(index.Index, "_add_rows", lambda *given: (general.append(len(given[1])), add_rows(*given)))
    store = make("many", **MANY).open()
    store.append([with_keys(1)])  # the first of a file is put by itself
    store.append([with_keys(6000, 6000 * number) for number in range(4)])
    store.dispatch_now()
    store._dispatcher.index_queued()
    assert general == [1]
    for number in range(4):
        assert len(now(store).query("T", f"{6000 * number + 5999:x}", 10, 0, 2**62)) == 1


def test_a_turn_ends_when_its_time_is_over(make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make("store", **MANY)
    store = bench.open()
    store.start()
    store.append([with_keys(2000, 2000 * number) for number in range(60)])
    steps: list[int] = []
    add = index.Index._add_some if compiled is None else index.Index._add_plain
    name = add.__name__
    monkeypatch.setattr(index.Index, name, lambda *given: (steps.append(1), add(*given)))
    Slow(store, monkeypatch)
    for turn in range(1, 4):
        waiting: Any = bench.clock.getDelayedCalls()
        calls = [call for call in waiting if call.func == store._dispatcher._turn]
        bench.clock.advance(max(0.0, calls[0].getTime() - bench.clock.rightNow))
        assert len(steps) == turn
    assert dispatched(bench, store) > 1


def test_a_bit_map_at_a_time_is_made(make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of filters it takes some ms for each message."""
    bench = make("store", **EXT)
    store = bench.open()
    made: list[bytes] = []
    store.make_bit_maps(lambda topic: lambda properties: (made.append(properties), b"\x01")[1])
    store.start()
    store.append([message() for _ in range(50)])
    Slow(store, monkeypatch)
    bench.clock.advance(0)
    assert len(made) == 1
    assert now(store).get("T", 0, 0, 32).count == 0  # what is not whole is not seen
    dispatched(bench, store)
    assert len(made) == 50
    assert store.max_offset("T", 0) == 50


def test_listeners_of_many_queues_are_told_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    told: list[Any] = []
    store.on_dispatch.append(lambda *what: told.append(what[1]))
    store.start()
    store.append([message(queue_id=number) for number in range(100)])
    Slow(store, monkeypatch)
    bench.clock.advance(0)
    assert len(told) == 1
    dispatched(bench, store)
    assert sorted(told) == list(range(100))


def test_who_sends_much_works_for_it(make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "UNCHARGED_BYTES_MAX", 256 * 1024)
    store = make("store", **MANY).open()
    store.start()
    dispatcher = store._dispatcher
    store.append([message(body=bytes(dispatch.UNCHARGED_BYTES_MAX // 2))])
    store.charge()
    assert dispatcher.offset == 0
    store.append([message(body=bytes(dispatch.UNCHARGED_BYTES_MAX // 2))])
    store.charge()
    assert dispatcher.offset == store.log_end
    store.charge()  # and nothing is left


def test_who_sends_a_little_does_not_work_for_another(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = bench.open()
    store.start()
    store.append([message(queue_id=number) for number in range(200)])
    Slow(store, monkeypatch)
    store.charge()
    bench.clock.advance(0)
    dispatcher = store._dispatcher
    assert dispatcher._is_late
    before = dispatcher._taken, len(dispatcher._cq_dispatcher._pending)
    store.append([message()])
    store.charge()
    assert (dispatcher._taken, len(dispatcher._cq_dispatcher._pending)) == before
    store.append([message(body=bytes(dispatch.CHARGED_BYTES_MIN))])
    store.charge()
    assert (dispatcher._taken, len(dispatcher._cq_dispatcher._pending)) != before


def test_on_a_full_disk_nobody_repeats_what_has_failed(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "UNCHARGED_BYTES_MAX", 256 * 1024)
    bench = make("store", **MANY)
    store = bench.open()
    store.start()
    store.append([message(body=bytes(2 * dispatch.UNCHARGED_BYTES_MAX // 3)) for _ in range(2)])
    attempts: list[int] = []

    def fail(*given: Any) -> bool:
        attempts.append(1)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(store._cq_dispatcher, "write", fail)
    store.charge()
    store._dispatcher._charged, store._dispatcher._is_late = 0, True
    store.charge()
    assert len(attempts) == 1
    monkeypatch.undo()
    bench.clock.advance(dispatch.RETRY_S)
    assert store.max_offset("T", 0) == 2


def test_a_query_waits_for_what_is_indexed_in_steps(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make("store", **MANY)
    store = bench.open()
    store.append([with_keys(2000, 2000 * number) for number in range(60)])
    store.dispatch_now()
    slow = Slow(store, monkeypatch)
    done: list[None] = []
    Deferred.fromCoroutine(store._dispatcher.index_in_turns()).addCallback(done.append)
    assert not done
    bench.clock.advance(0)
    assert done
    assert slow.turns > 5
    assert len(now(store).query("T", f"{2000 * 59 + 1999:x}", 10, 0, 2**62)) == 1
