"""Readers see what is below a limit alone, such as the point up to which other brokers have the log."""

from __future__ import annotations

import attrs
import pytest

from mqbroker.store import GetMessageStatus
from mqbroker.store.dispatch_queue import Appended
from mqbroker.store.message_store import MessageStore
from mqbroker.wire.record import NewMessage
from tests.store.harness import Bench, make_bench, message, now, stop, tree, turns


@attrs.define
class Confirmed:
    """A limit that a test moves."""

    store: MessageStore
    end: int = 0

    def __attrs_post_init__(self) -> None:
        self.store.show_below(lambda: self.end)
        self.store.start()

    def move(self, end: int) -> None:
        self.end = end
        self.store.limit_moved()


def end_of(appended: Appended) -> int:
    return appended[0] + appended[2]


def append(bench: Bench, store: MessageStore, count: int) -> list[Appended]:
    """Each by itself, with a key."""
    made: list[NewMessage] = [message(properties=b"KEYS\x01k%d" % number) for number in range(count)]
    appended = [store.append([each])[0] for each in made]
    bench.clock.advance(0.1)
    return appended


def visible(store: MessageStore, topic: str = "T") -> int:
    found = now(store).get(topic, 0, 0, 32)
    assert found.max_offset == store.max_offset(topic, 0)
    return found.count


def test_nothing_above_the_limit_is_found_and_all_below(bench: Bench) -> None:
    store = bench.open()
    limit = Confirmed(store)
    places = append(bench, store, 5)
    seen = [(visible(store), store.max_offset("T", 0))]
    for number in range(5):
        limit.move(end_of(places[number]))
        bench.clock.advance(0.1)
        seen.append((visible(store), store.max_offset("T", 0)))
    assert seen == [(n, n) for n in range(6)]
    assert store.next_offset("T", 0) == 5


def test_a_limit_within_a_batch_shows_the_records_below(bench: Bench) -> None:
    store = bench.open()
    limit = Confirmed(store)
    places = store.append([message() for _ in range(10)])
    limit.move(end_of(places[3]))
    bench.clock.advance(0.1)
    assert visible(store) == 4
    limit.move(end_of(places[9]))
    bench.clock.advance(0.1)
    assert visible(store) == 10


def test_a_limit_within_a_record_neither_shows_it_nor_keeps_the_clock_busy(bench: Bench) -> None:
    store = bench.open()
    limit = Confirmed(store)
    places = append(bench, store, 3)
    limit.move(end_of(places[1]) + 7)
    turns(bench.clock, 0.1)
    assert visible(store) == 2
    assert store._dispatcher._call is None


def test_who_waits_is_told_in_the_next_turn_after_the_limit_moves(bench: Bench) -> None:
    store = bench.open()
    limit = Confirmed(store)
    told: list[int] = []
    store.on_dispatch.append(lambda topic, queue_id, next_offset, *_: told.append(next_offset))
    store.is_awaited_by({("T", 0): object()})
    places = append(bench, store, 2)
    assert told == []
    limit.move(end_of(places[0]))
    bench.clock.advance(0)
    assert told == [1]
    limit.move(end_of(places[1]))
    bench.clock.advance(0.001)
    assert told == [1, 2]


def test_what_exceeds_the_dispatch_queue_meanwhile_is_read_from_the_log(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqbroker.store.dispatch_queue.QUEUED_BYTES_MAX", 1000)
    store = bench.open()
    limit = Confirmed(store)
    places = append(bench, store, 30)
    for place in (places[10], places[11], places[29]):
        limit.move(end_of(place))
        bench.clock.advance(0.1)
        assert visible(store) == places.index(place) + 1


def test_neither_a_query_by_key_nor_one_by_id_finds_what_is_above(bench: Bench) -> None:
    store = bench.open()
    limit = Confirmed(store)
    places = append(bench, store, 2)

    def found() -> list[tuple[int, bool]]:
        ms = int(bench.clock.seconds() * 1000)
        return [
            (len(now(store).query("T", f"k{n}", 32, 0, ms + 1000)), now(store).record(place[0]) is not None)
            for n, place in enumerate(places)
        ]

    assert found() == [(0, False), (0, False)]
    limit.move(end_of(places[0]))
    bench.clock.advance(0)
    assert found() == [(1, True), (0, False)]
    limit.move(end_of(places[1]))
    bench.clock.advance(0.1)
    assert found() == [(1, True), (1, True)]


def test_who_has_read_what_is_not_shown_here_yet_waits_at_its_place(bench: Bench) -> None:
    store = bench.open()
    limit = Confirmed(store)
    places = append(bench, store, 5)
    statuses = [now(store).get("T", 0, offset, 32) for offset in range(7)]
    assert [(each.status, each.next_offset) for each in statuses[1:]] == [
        *((GetMessageStatus.OFFSET_OVERFLOW_ONE, offset) for offset in range(1, 6)),
        (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0),
    ]
    limit.move(end_of(places[1]))
    bench.clock.advance(0.1)
    statuses = [now(store).get("T", 0, offset, 32) for offset in range(2, 7)]
    assert [(each.status, each.next_offset) for each in statuses] == [
        *((GetMessageStatus.OFFSET_OVERFLOW_ONE, offset) for offset in range(2, 6)),
        (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 2),
    ]


@pytest.mark.parametrize("kind", ["stopped", "killed", "killed after all was dispatched"])
@pytest.mark.parametrize("shown", [0, 1, 3, 5])
def test_a_start_hides_a_tail_above_the_limit_and_numbers_on_behind_it(bench: Bench, kind: str, shown: int) -> None:
    store = bench.open()
    store.start()
    places = append(bench, store, 3)
    bench.clock.advance(10)  # these are synced
    places += append(bench, store, 2)
    if kind == "killed after all was dispatched":
        bench.clock.advance(10)
    if kind == "stopped":
        stop(store)
        again = bench
    else:
        again = bench.image("image")
    reopened = again.open()
    limit = Confirmed(reopened, end_of(places[shown - 1]) if shown else 0)
    again.clock.advance(0.1)
    assert visible(reopened) == shown
    assert reopened.append([message()])[0][1] == 5
    again.clock.advance(0.1)
    assert visible(reopened) == shown
    limit.move(reopened.log_end)
    again.clock.advance(0.1)
    assert visible(reopened) == 6
    stop(reopened)


def test_a_kill_after_the_tail_was_hidden_leaves_a_whole_store(bench: Bench) -> None:
    store = bench.open()
    store.start()
    places = append(bench, store, 5)
    stop(store)
    reopened = bench.open()
    Confirmed(reopened, end_of(places[1]))
    bench.clock.advance(10)
    image = bench.image("image")
    last = image.open()
    last.start()
    image.clock.advance(0.1)
    assert visible(last) == 5
    stop(last)
    stop(reopened)


def test_a_stop_dispatches_all_and_tells_nobody(bench: Bench) -> None:
    store = bench.open()
    Confirmed(store)
    told: list[object] = []
    store.on_dispatch.append(lambda *what: told.append(what))
    append(bench, store, 5)
    stop(store)
    assert told == []
    reopened = bench.open()
    assert reopened.max_offset("T", 0) == 5
    stop(reopened)


def test_services_begin_once_all_that_the_log_had_is_shown(bench: Bench) -> None:
    store = bench.open()
    seen: list[int] = []
    store.when_shown(lambda: seen.append(-1))  # there is no limit, nor a message
    limit = Confirmed(store)
    places = append(bench, store, 3)
    store.when_shown(lambda: seen.append(store.max_offset("T", 0)))
    store.append([message()])
    limit.move(end_of(places[1]))
    assert seen == [-1]
    limit.move(end_of(places[2]))
    assert seen == [-1, 3]
    limit.move(store.log_end)
    assert seen == [-1, 3]


def test_a_hidden_tail_of_a_queue_with_units_is_dispatched_again_as_it_was(tmp_path: object) -> None:
    bench = make_bench(tmp_path, enable_consume_queue_ext=True)  # type: ignore[arg-type]
    store = bench.open()
    store.start()
    places = append(bench, store, 5)
    stop(store)
    before = {name: data for name, data in tree(bench.root).items() if "consumequeue" in name}
    reopened = bench.open()
    limit = Confirmed(reopened, end_of(places[1]))
    bench.clock.advance(0.1)
    assert visible(reopened) == 2
    limit.move(reopened.log_end)
    bench.clock.advance(0.1)
    assert visible(reopened) == 5
    stop(reopened)
    assert {name: data for name, data in tree(bench.root).items() if "consumequeue" in name} == before
