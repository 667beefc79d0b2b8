"""The filters of consumer groups: what heartbeats make of them, when they die, and their file."""

import json
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from mqbroker.broker import filter_table as module
from mqbroker.broker.filter_table import FilterTable
from mqbroker.filter import sql92
from mqbroker.filter.bloom import BloomFilter
from mqbroker.filter.grammar import parse
from mqbroker.store.jsonfile import JsonFile
from mqbroker.store.os_disk import OsDisk
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.bodies import SubscriptionData
from tests.broker.bench import START
from tests.filter.evaluating import matches
from tests.remoting.logs import Logged

NOW = START * 1000
CLEAN_MS = 60_000
BLOOM = BloomFilter.for_consumers(32, 20)


def sql(text: str = "a > 5", version: int = 1, topic: str = "T", kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(topic, text, sub_version=version, expression_type=kind)


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.advance(START)
    return clock


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "consumerFilter.json")


def open_table(path: str, clock: Clock, bloom: BloomFilter = BLOOM) -> FilterTable:
    return FilterTable(JsonFile(path, InlineWorker(), OsDisk()), clock.seconds, bloom, CLEAN_MS)


@pytest.fixture
def table(path: str, clock: Clock) -> FilterTable:
    return open_table(path, clock)


def seen(table: FilterTable, topic: str = "T", group: str = "CG") -> Any:
    found = table.get(topic, group)
    return found and (found.expression.text, found.client_version, found.born_ms - NOW, found.dead_ms and "dead")


def test_a_heartbeat_brings_a_filter(table: FilterTable) -> None:
    table.register_group("CG", [sql(), SubscriptionData("U", "A || B")])
    assert seen(table) == ("a > 5", 1, 0, 0)
    assert table.get("U", "CG") is None
    assert table.get("T", "other") is None
    assert table.get("T", "CG").bloom == BLOOM.of("CG#T")
    assert table.of_topic("T") == [table.get("T", "CG")]
    assert table.of_topic("U") == []


@pytest.mark.parametrize(
    ("second", "outcome"),
    [
        (sql("a > 6", 2), ("a > 6", 2, 5000, 0)),  # another one is born when it comes
        (sql("a > 5", 2), ("a > 5", 2, 0, 0)),  # the same only gets the version
        (sql("a > 6", 1), ("a > 5", 1, 0, 0)),  # an older or equal version changes nothing
        (sql("a >", 0), ("a > 5", 1, 0, 0)),
        (sql("a >", 2), None),  # the consumer shall be told
        (sql("a > 6", 2, kind="XPATH"), None),
        (sql("", 2), ("a > 5", 1, 0, 0)),
    ],
)
def test_what_a_later_heartbeat_makes_of_it(
    table: FilterTable, clock: Clock, second: SubscriptionData, outcome: tuple[str, int, int, int] | None
) -> None:
    table.register_group("CG", [sql()])
    clock.advance(5)
    table.register_group("CG", [second])
    assert seen(table) == outcome


def test_an_expression_that_cannot_be_read_is_none(table: FilterTable, logged: Logged) -> None:
    table.register_group("CG", [sql("a >")])
    assert table.get("T", "CG") is None
    assert any("cannot be read" in event["log_format"] for event in logged)


def test_an_expression_that_cannot_be_read_is_logged_once_however_often_it_is_sent(
    table: FilterTable, logged: Logged
) -> None:
    for text, lines in (("a >", 1), ("a >", 1), ("a >", 1), ("a <", 2), ("a < 5", 2), ("a <", 3), ("a <", 3)):
        version = len(logged) + 1
        table.register_group("CG", [sql(text, version)])
        assert len([line for line in logged.lines if "cannot be read" in line]) == lines


def test_filters_die_with_their_group_and_with_their_subscription(table: FilterTable, clock: Clock) -> None:
    table.register_group("CG", [sql(), sql(topic="U")])
    table.register_group("other", [sql()])
    clock.advance(1)
    table.register_group("CG", [sql()])
    assert (seen(table)[3], seen(table, "U")[3]) == (0, "dead")
    clock.advance(1)
    table.group_gone("CG")
    assert (seen(table)[3], seen(table, group="other")[3]) == ("dead", 0)
    assert table.get("T", "CG").dead_ms == NOW + 2000
    assert table.get("U", "CG").dead_ms == NOW + 1000
    table.group_gone("nobody")


@pytest.mark.parametrize("version", [1, 2])
def test_a_dead_filter_comes_back_to_life(table: FilterTable, clock: Clock, version: int) -> None:
    table.register_group("CG", [sql()])
    clock.advance(1)
    table.group_gone("CG")
    table.register_group("CG", [sql("a > 5", version)])
    assert seen(table) == ("a > 5", version, 0, 0)


def test_a_dead_filter_of_an_older_version_stays_dead(table: FilterTable, clock: Clock) -> None:
    table.register_group("CG", [sql(version=3)])
    clock.advance(1)
    table.group_gone("CG")
    table.register_group("CG", [sql(version=2)])
    assert seen(table) == ("a > 5", 3, 0, "dead")


def test_the_dead_are_forgotten_after_a_while(table: FilterTable, clock: Clock) -> None:
    table.register_group("CG", [sql(), sql(topic="U")])
    clock.advance(1)
    table.register_group("CG", [sql()])
    clock.advance(CLEAN_MS / 1000 - 1)
    table.persist()
    assert table.get("U", "CG") is not None
    clock.advance(1)
    table.persist()
    assert table.get("U", "CG") is None
    assert table.get("T", "CG") is not None
    clock.advance(1000)
    table.group_gone("CG")
    clock.advance(CLEAN_MS / 1000)
    table.clean()
    assert table.of_topic("T") == []


def test_there_are_only_so_many(table: FilterTable, monkeypatch: pytest.MonkeyPatch, logged: Logged) -> None:
    monkeypatch.setattr(module, "FILTERS_MAX", 2)
    table.register_group("CG", [sql(topic=f"T{number}") for number in range(3)])
    assert [table.get(f"T{number}", "CG") is not None for number in range(3)] == [True, True, False]
    assert any("is ignored: only" in event["log_format"] for event in logged)
    table.register_group("CG", [sql("a > 6", 2, topic="T1")])
    assert seen(table, "T1")[0] == "a > 6"


# --- the file


def test_the_file_is_as_java_writes_it(table: FilterTable, path: str) -> None:
    table.register_group("CG", [sql()])
    table.persist()
    with open(path, "rb") as file:
        assert json.load(file) == {
            "filterDataByTopic": {
                "T": {
                    "groupFilterData": {
                        "CG": {
                            "bloomFilterData": {"bitNum": 112, "bitPos": list(BLOOM.of("CG#T").positions)},
                            "bornTime": NOW,
                            "clientVersion": 1,
                            "consumerGroup": "CG",
                            "dead": False,
                            "deadTime": 0,
                            "expression": "a > 5",
                            "expressionType": "SQL92",
                            "topic": "T",
                        }
                    },
                    "topic": "T",
                }
            }
        }


def test_the_file_is_written_where_something_changed(table: FilterTable, path: str, clock: Clock) -> None:
    table.persist()
    assert not os.path.exists(path)
    table.register_group("CG", [sql()])
    table.persist()
    os.remove(path)
    table.register_group("CG", [sql()])
    table.persist()
    assert not os.path.exists(path)
    table.group_gone("CG")
    table.persist()
    assert os.path.exists(path)


def test_all_are_dead_after_a_start(table: FilterTable, path: str, clock: Clock) -> None:
    table.register_group("CG", [sql()])
    table.persist()
    clock.advance(10)
    table = open_table(path, clock)
    assert table.get("T", "CG").dead_ms == NOW
    clock.advance(60)
    table = open_table(path, clock)
    assert table.get("T", "CG").dead_ms == NOW + 40_000
    assert matches(table.get("T", "CG").expression, {"a": "6"})
    table.register_group("CG", [sql()])
    assert seen(table) == ("a > 5", 1, 0, 0)


def test_bit_maps_of_another_shape_leave_the_file(table: FilterTable, path: str, clock: Clock) -> None:
    table.register_group("CG", [sql()])
    table.persist()
    assert open_table(path, clock, BloomFilter.for_consumers(64, 20)).get("T", "CG") is None


@pytest.mark.parametrize("change", [{"expression": "a >"}, {"expressionType": "XPATH"}, {"expression": ""}])
def test_what_the_file_has_that_cannot_be_read_is_left_and_told(
    table: FilterTable, path: str, clock: Clock, change: dict[str, str], logged: Logged
) -> None:
    table.register_group("CG", [sql(), sql(topic="U")])
    table.persist()
    with open(path, "rb") as file:
        data = json.load(file)
    data["filterDataByTopic"]["U"]["groupFilterData"]["CG"].update(change)
    with open(path, "w") as file:
        json.dump(data, file)
    table = open_table(path, clock)
    assert table.get("U", "CG") is None
    assert seen(table)[0] == "a > 5"
    assert any("cannot be read" in event["log_format"] for event in logged)


def test_a_start_reads_so_much_of_the_file_and_leaves_the_rest_until_it_is_needed(
    table: FilterTable, path: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"a > {number}" for number in range(10, 15)]
    for number, text in enumerate(texts):
        table.register_group(f"G{number}", [sql(text)])
    table.persist()
    monkeypatch.setattr(module, "CHARACTERS_AT_START", 3 * 6 - 1)
    monkeypatch.setattr(sql92, "_kept", OrderedDict())
    parsed = []
    monkeypatch.setattr(sql92, "parse", lambda text: parsed.append(text) or parse(text))
    table = open_table(path, clock)
    assert parsed == texts[:2]
    unread = table.of_topic("T")[4]
    assert unread.expression.pick([b"a\x011", b"", b"a\x0199"], 2) == [0, 1]  # any may be what it wants
    table.register_group("G4", [sql(texts[4])])  # known for the same by its text
    assert parsed == texts[:2]
    assert not table.get("T", "G4").is_dead
    assert table.get("T", "G4").expression.pick([b"a\x011", b"", b"a\x0199"], 2) == [2]
    assert parsed == [*texts[:2], texts[4]]
    assert table.of_topic("T")[4] is table.get("T", "G4")
    assert [one.expression.text for one in table.of_topic("T")] == texts


def test_what_is_needed_and_cannot_be_read_is_left_out(
    table: FilterTable, path: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, logged: Logged
) -> None:
    table.register_group("CG", [sql(), sql(topic="U")])
    table.persist()
    with open(path, "rb") as file:
        data = json.load(file)
    data["filterDataByTopic"]["U"]["groupFilterData"]["CG"]["expression"] = "a >"
    with open(path, "w") as file:
        json.dump(data, file)
    monkeypatch.setattr(module, "CHARACTERS_AT_START", 0)
    monkeypatch.setattr(sql92, "_kept", OrderedDict())
    table = open_table(path, clock)
    assert len(table.of_topic("U")) == 1
    assert table.get("U", "CG") is None
    assert table.of_topic("U") == []
    assert any("cannot be read" in event["log_format"] for event in logged)
    assert seen(table)[0] == "a > 5"


def test_no_more_of_the_file_are_looked_at_than_are_kept(
    table: FilterTable, path: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        table.register_group(f"G{number}", [sql(f"b > {number}")])
    table.persist()
    monkeypatch.setattr(module, "FILTERS_MAX", 2)
    monkeypatch.setattr(sql92, "_kept", OrderedDict())
    monkeypatch.setattr(sql92, "parse", lambda text: parsed.append(text) or parse(text))
    parsed: list[Any] = []
    assert len(open_table(path, clock).of_topic("T")) == len(parsed) == 2


def test_a_filter_that_died_at_a_start_dies_once_however_often_a_broker_starts(path: str, clock: Clock) -> None:
    table = open_table(path, clock)
    table.register_group("CG", [sql()])
    table.persist()
    for _ in range(5):
        clock.advance(CLEAN_MS / 4000)
        table = open_table(path, clock)
        table.persist()
    assert seen(table) is None
