"""`mq brokers`: rates and sums of what brokers tell, shards as one broker, whatever is missing."""

from __future__ import annotations

import json
import sys
from asyncio import run
from typing import Any, cast

import pytest
from click.testing import CliRunner

from mqbroker.cli import cli
from mqbroker.cli.brokers import BrokerRow, lines, merged_rows, rows_of
from mqbroker.cli.cluster import broker_sets, shard_number
from mqbroker.wire.bodies import BrokerData
from tests.cli.net import Net


def info(puts: str = "2.5 1.0 0.0", **more: str) -> dict[str, Any]:
    return {
        "brokerVersionDesc": "V4_9_7",
        "putTps": puts,
        "getTransferedTps": "1.5 0.0 0.0",
        "msgPutTotalTodayNow": "110",
        "msgPutTotalTodayMorning": "100",
        "msgGetTotalTodayNow": "7",
        "msgGetTotalTodayMorning": "0",
        **more,
    }


def shard(number: int, of: str = "a", count: int = 3, **more: str) -> dict[str, Any]:
    return info(shardOf=of, shard=str(number), shards=str(count), **more)


def net(infos: dict[str, dict[str, Any] | None], cluster: str = "c") -> Net:
    """A name server with brokers by their names; those with None do not answer."""
    addresses = {name: f"10.0.0.1:{port}" for port, name in enumerate(infos, 1)}
    sets = {name: BrokerData(name, cluster, {0: address}) for name, address in addresses.items()}
    return Net(sets, {addresses[name]: found for name, found in infos.items() if found is not None})


def rows(net: Net) -> list[BrokerRow]:
    return run(rows_of(cast(Any, net), ["ns:1"]))


def test_a_broker_alone() -> None:
    [row] = rows(net({"a": info()}))
    assert row == BrokerRow("c", "a", 0, "10.0.0.1:1", "V4_9_7", 2.5, 1.5, 10, 7)
    assert merged_rows([row]) == [row]
    assert row.state == ""


def test_a_cluster_of_thousands_of_brokers_is_read() -> None:
    """In the dialect of Java's name servers, which have numbers for keys."""
    sets = {f"broker-{n}": BrokerData(f"broker-{n}", "c", {0: f"10.0.0.1:{n}"}) for n in range(5000)}
    assert run(broker_sets(cast(Any, Net(sets, {})), ["ns:1"])) == sets


def test_shards_are_one_broker() -> None:
    found = rows(net({"a-2": shard(2), "b": info(), "a": shard(0), "a-1": shard(1)}))
    assert [row.name for row in found] == ["a", "a-1", "a-2", "b"]
    a, b = merged_rows(found)
    assert (a.name, a.address, a.in_per_s, a.out_per_s, a.in_today, a.out_today) == (
        "a",
        "10.0.0.1:3",
        7.5,
        4.5,
        30,
        21,
    )
    assert (a.state, a.serving, a.shards) == ("3 shards", 3, 3)
    assert (b.name, b.state) == ("b", "")


def test_a_shard_that_is_away_is_missed() -> None:
    [a] = merged_rows(rows(net({"a": shard(0), "a-2": shard(2)})))
    assert (a.state, a.in_today) == ("2 of 3 shards", 20)
    [a] = merged_rows(rows(net({"a-2": shard(2)})))
    assert (a.name, a.address, a.state) == ("a", "10.0.0.1:1", "1 of 3 shards")


def test_a_shard_that_does_not_answer_is_known_by_its_name() -> None:
    found = rows(net({"a": shard(0), "a-1": None, "a-2": shard(2), "a-3": None, "ab": None}))
    a, other, last = merged_rows(found)
    assert a.state.startswith("2 of 3 shards; a-1: no answer: ")
    assert (other.name, last.name) == ("a-3", "ab")  # of somebody else
    assert other.state.startswith("no answer: ")


def test_a_broker_that_refuses_messages_does_not_serve_and_says_why() -> None:
    why = "the disk of /s/commitlog is full\x1b"
    found = rows(net({"a": shard(0), "a-1": shard(1, whyRefused=why), "a-2": shard(2), "b": info(whyRefused=why)}))
    assert [row.serving for row in found] == [1, 0, 1, 0]
    a, b = merged_rows(found)
    assert a.state == "2 of 3 shards; a-1: refuses messages: the disk of /s/commitlog is full\\x1b"
    assert (b.state, b.shards) == ("refuses messages: the disk of /s/commitlog is full\\x1b", 1)


def test_a_broker_with_the_name_of_a_shard_is_none() -> None:
    found = rows(net({"a": info(), "a-1": info()}))
    assert merged_rows(found) == found
    found = rows(net({"a": shard(0), "a-1": info(whyRefused="it has no room")}))
    assert [row.name for row in merged_rows(found)] == ["a", "a-1"]


def test_slaves_are_taken_together_as_slaves() -> None:
    sets = {name: BrokerData(name, "c", {0: f"m:{name}", 1: f"s:{name}"}) for name in ("a", "a-1")}
    infos = {f"{role}:{name}": shard(n, count=2) for role in "ms" for n, name in enumerate(("a", "a-1"))}
    found = merged_rows(rows(Net(sets, infos)))
    assert [(row.name, row.broker_id, row.address, row.state) for row in found] == [
        ("a", 0, "m:a", "2 shards"),
        ("a", 1, "s:a", "2 shards"),
    ]


def test_what_a_broker_does_not_say_is_unknown() -> None:
    young = info(puts=" 1.0 ")
    [a] = merged_rows(rows(net({"a": shard(0, count=2), "a-1": {**young, "shardOf": "a", "shards": "2"}})))
    assert a.in_per_s == 2.5
    [row] = rows(net({"x": {"putTps": "x", "msgPutTotalTodayNow": "-"}}))
    assert lines([row], as_json=False, on_terminal=False) == ["c\tx\t0\t10.0.0.1:1\t?\t?\t?\t?\t?\t"]


def test_each_shard_says_which_it_is() -> None:
    found = rows(net({"a": shard(0, count=3), "a-1": None, "a-2": shard(2, count=3)}))
    assert [row.state.partition(";")[0] for row in found] == ["shard 0 of 3", "shard 1 of 3", "shard 2 of 3"]
    assert merged_rows(found)[0].state.startswith("2 of 3 shards; a-1: no answer: ")


@pytest.mark.parametrize("shards", ["0", "x", "", "1"])
def test_a_number_of_shards_that_is_none(shards: str) -> None:
    found = rows(net({"a": info(shardOf="a", shards=shards)}))
    assert merged_rows(found) == found
    assert found[0].state == ""


def test_output_for_people_and_for_programs() -> None:
    found = merged_rows(rows(net({"a": shard(0, count=2), "a-1": shard(1, count=2)})))
    assert lines(found, as_json=False, on_terminal=True) == [
        "cluster  broker  id  address     version  in/s  out/s  in today  out today  state",
        "c        a       0   10.0.0.1:1  V4_9_7   5.0   3.0    20        14         2 shards",
    ]
    [line] = lines(found, as_json=True, on_terminal=True)
    told = json.loads(line)
    assert (told["name"], told["shards"], told["serving"], told["state"]) == ("a", 2, 2, "2 shards")


@pytest.mark.parametrize(
    ("infos", "options", "code", "count"),
    [
        ({"a": shard(0, count=2), "a-1": shard(1, count=2)}, [], 0, 1),
        ({"a": shard(0, count=2), "a-1": shard(1, count=2)}, ["--shards"], 0, 2),
        ({"a": shard(0, count=2)}, [], 1, 1),
        ({"a": shard(0, count=2)}, ["--shards"], 1, 1),
        ({"a": shard(0, count=2), "a-1": None}, [], 3, 1),
    ],
)
def test_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, infos: dict[str, Any], options: list[str], code: int, count: int
) -> None:
    module = sys.modules["mqbroker.cli.brokers"]  # its name in the package is the command's
    monkeypatch.setattr(module, "asked", lambda servers, ask: run(ask(net(infos), ["ns:1"])))
    done = CliRunner().invoke(cli, ["brokers", *options])
    assert (done.exit_code, len(done.output.splitlines())) == (code, count)


@pytest.mark.parametrize(
    ("name", "number"), [("a", 0), ("a-1", 1), ("a-63", 63), ("a-0", None), ("a-01", None), ("a-x", None), ("b", None)]
)
def test_which_shard_a_name_is(name: str, number: int | None) -> None:
    assert shard_number(name, "a") == number
