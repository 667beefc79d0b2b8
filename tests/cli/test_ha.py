"""`mq ha status`: what is shown of masters and slaves, whatever they answer."""

from __future__ import annotations

import json
import subprocess
import sys
from asyncio import run
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from mqbroker.cli import cli
from mqbroker.cli.failures import Failure, NoAnswer
from mqbroker.cli.ha import Member, cause_of, lines, members_of, slave_to_promote, slaves_to_promote
from mqbroker.client.errors import NameServerUnreachable
from mqbroker.wire.bodies import BrokerData
from tests.cli.net import Net
from tests.daemons.processes import DEADLINE_SECONDS, SOURCE, Process, wait_for

MASTER, SLAVE = "10.0.0.1:10911", "10.0.0.2:10911"


def net(master: dict[str, Any] | None, slave: dict[str, Any] | None) -> Net:
    infos = {address: info for address, info in ((MASTER, master), (SLAVE, slave)) if info is not None}
    return Net({"a": BrokerData("a", "c", {1: SLAVE, 0: MASTER})}, infos)


def shown(net: Net, name: str | None = None) -> list[Member]:
    return run(members_of(cast(Any, net), ["ns:1"], name))


def test_a_master_and_its_slave() -> None:
    master = {"commitLogMaxOffset": "1000", "haSlave_10.0.0.2:4": "900,100"}
    slave = {"commitLogMaxOffset": "900", "haMaster_10.0.0.1:10912": "900,50,"}
    assert shown(net(master, slave)) == [
        Member("a", 0, MASTER, 1000, None, "1 slave connected", True, True),
        Member("a", 1, SLAVE, 900, 100, "follows", True, True, True),
    ]


@pytest.mark.parametrize(
    ("values", "state"),
    [
        (["1,0,0,0"], "1 slave connected"),
        (["1,9,3,1000", "1,9,7,2000"], "2 slaves connected, 7 s behind at most, 3,000 bytes/s"),
        (["1,9,x,-1", ""], "2 slaves connected"),
    ],
)
def test_a_master_says_how_far_and_how_fast_its_slaves_follow(values: list[str], state: str) -> None:
    master = {"commitLogMaxOffset": "9"} | {f"haSlave_{number}": value for number, value in enumerate(values)}
    assert shown(net(master, {}))[0].state == state


def test_brokers_that_elect_their_master_say_who_is_in_sync() -> None:
    group = {"groupEpoch": "7", "groupInSync": "1 x 3", "groupWhyNot": ""}
    master = {"commitLogMaxOffset": "9", "haSlave_x": "9,0,0", "groupReplicaId": "3", **group}
    out = {"commitLogMaxOffset": "5", "haMaster_x": "5,,", "groupReplicaId": "2", **group, "groupWhyNot": "no answer"}
    found = shown(net(master, out))
    assert [member.state for member in found] == [
        "replica 3, epoch 7, in sync; 1 slave connected",
        "takes no part: no answer; replica 2, epoch 7, not in sync; follows",
    ]
    seen = [(member.is_well, member.epoch, member.in_sync) for member in found]
    assert seen == [(True, 7, (1, 3)), (False, 7, (1, 3))]
    with pytest.raises(Failure, match="elect their master through etcd: use `mq ha switch`"):
        slave_to_promote(found, None)


def test_brokers_of_java_say_less() -> None:
    assert shown(net({"commitLogMaxOffset": "1000"}, {"commitLogMaxOffset": "1200"})) == [
        Member("a", 0, MASTER, 1000, None, "", True, True),
        Member("a", 1, SLAVE, 1200, 0, "", True, True),
    ]


def test_a_slave_whose_master_is_away_says_what_it_knows() -> None:
    slave = {"commitLogMaxOffset": "900", "haMaster_": "900,50,no connection: refused, really"}
    master, member = shown(net(None, slave))
    assert (master.is_answering, master.state[:10]) == (False, "no answer:")
    assert member == Member(
        "a", 1, SLAVE, 900, 50, "does not follow: no connection: refused, really", True, False, True
    )


@pytest.mark.parametrize("value", ["", "-1", "1e3", "٣", "x" * 100_000, "0x10"])
def test_values_that_are_no_numbers_are_unknown(value: str) -> None:
    info = {"commitLogMaxOffset": value, "haMaster_x": value}
    assert [member.end for member in shown(net(info, info))] == [None, None]


def test_a_name_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(Failure, match="no broker called b is registered; there are: a"):
        shown(net({}, {}), "b")
    assert shown(Net({"a": BrokerData("a", "c", {0: MASTER}), "b": BrokerData("b")}, {MASTER: {}}), "b") == []


def test_no_name_server_answers() -> None:
    with pytest.raises(NameServerUnreachable):
        run(members_of(cast(Any, net({}, {})), ["ns:2", "ns:3"], None))


def test_output_for_people_and_for_programs() -> None:
    members = [
        Member("a", 0, MASTER, 1000, None, "1 slave connected", True, True),
        Member("a", 1, SLAVE, None, None, "does not follow: \x1b[2J\tx\n", True, False),
    ]
    assert lines(members, as_json=False, on_terminal=False) == [
        f"a\t0\t{MASTER}\tmaster\t1000\t\t1 slave connected",
        f"a\t1\t{SLAVE}\tslave\t?\t?\tdoes not follow: \\x1b[2J\\tx\\n",
    ]
    assert lines(members[:1], as_json=False, on_terminal=True) == [
        "broker  id  address         role    log end  behind  state",
        "a       0   10.0.0.1:10911  master  1000             1 slave connected",
    ]
    [_, slave] = [json.loads(line) for line in lines(members, as_json=True, on_terminal=True)]
    assert (slave["broker_id"], slave["role"], slave["end"], slave["is_well"]) == (1, "slave", None, False)


def slave(broker_id: int = 1, end: int | None = 900, *, is_ours: bool = True, is_answering: bool = True) -> Member:
    return Member("a", broker_id, f"10.0.0.{broker_id}:1", end, None, "", is_answering, is_answering, is_ours)


def test_the_only_slave_is_promoted_or_the_one_that_is_named() -> None:
    dead = Member("a", 0, MASTER, None, None, "no answer", False, False)
    assert slave_to_promote([dead, slave()], None) == slave()
    assert slave_to_promote([slave(1), slave(2)], 2) == slave(2)
    assert slave_to_promote([slave(1, 5), slave(2, None), slave(3, 4)], 1) == slave(1, 5)


@pytest.mark.parametrize(
    ("members", "broker_id", "says"),
    [
        (
            [Member("a", 0, MASTER, 9, None, "", True, True), slave()],
            None,
            "the master at 10.0.0.1:10911 is running",
        ),
        ([], None, "no slave responds"),
        ([slave(is_answering=False)], None, "no slave responds"),
        (
            [slave(1), slave(2)],
            None,
            r"which slave is to become the master\? Choose it with --id; there are: 1 \(log end 900\), 2",
        ),
        ([slave(1)], 2, "which slave is to become the master"),
        ([slave(1), slave(2, 901)], 1, "the slave 2 has 1 bytes more: make it the master"),
        ([slave(is_ours=False)], None, "is of the Java system: change brokerId and brokerRole in its file"),
    ],
)
def test_what_might_lose_messages_is_not_done(members: list[Member], broker_id: int | None, says: str) -> None:
    with pytest.raises(Failure, match=says):
        slave_to_promote(members, broker_id)


def shards(*ends: int | None, count: int = 2) -> Net:
    """Slaves of the shards of "a", with the ends of their logs; None for one that does not answer."""
    names = ["a", "a-1", "a-2"][: len(ends)]
    of = {"shardOf": "a", "shards": str(count), "haMaster_": "0,0,no master"}
    infos = {f"s:{n}": {"commitLogMaxOffset": str(end), **of} for n, end in enumerate(ends) if end is not None}
    sets = {name: BrokerData(name, "c", {1: f"s:{n}"}) for n, name in enumerate(names)}
    return Net({**sets, "a-9": BrokerData("a-9", "c", {0: "other:1"}), "ab": BrokerData("ab", "c", {})}, infos)


def test_the_shards_of_a_broker_are_shown_with_it() -> None:
    assert [member.name for member in shown(shards(5, 6), "a")] == ["a", "a-1"]
    assert [member.name for member in shown(shards(5, None), "a")] == ["a", "a-1"]
    assert [member.name for member in shown(shards(5, 6), "a-1")] == ["a-1"]


def test_all_shards_are_promoted_together() -> None:
    members = shown(shards(5, 6), "a")
    assert [member.address for member in slaves_to_promote(members, None)] == ["s:0", "s:1"]
    with pytest.raises(Failure, match="no slave responds"):
        slaves_to_promote(shown(shards(5, None), "a"), None)
    with pytest.raises(Failure, match="of 3 shards only a, a-1 are registered"):
        slaves_to_promote(shown(shards(5, 6, count=3), "a"), None)
    assert [member.name for member in slaves_to_promote(shown(shards(5, 6, count=3), "a-1"), None)] == ["a-1"]


def test_where_nobody_answers_the_exit_code_says_so() -> None:
    done = CliRunner().invoke(cli, ["ha", "status", "-n", "127.0.0.1:1"])
    assert done.exit_code == NoAnswer.exit_code
    assert "127.0.0.1:1" in done.output


@pytest.mark.daemons
@pytest.mark.parametrize("is_controlled", [True, False])
def test_real_brokers(tmp_path: Path, request: pytest.FixtureRequest, is_controlled: bool) -> None:
    def start(name: str, module: str, *settings: str) -> Process:
        folder = tmp_path / name
        folder.mkdir()
        options = [part for setting in ("bindAddress=127.0.0.1", "listenPort=0", *settings) for part in ("-o", setting)]
        process = Process(folder, ["-m", f"mqbroker.daemons.{module}", "--ports-file", "ports.json", *options])
        request.addfinalizer(process.end)
        return process

    name_server = f"127.0.0.1:{start('namesrv', 'namesrv').wait_for_port()}"
    common: tuple[str, ...] = (
        f"namesrvAddr={name_server}",
        "brokerName=a",
        "brokerIP1=127.0.0.1",
        "brokerIP2=127.0.0.1",
    )
    if is_controlled:
        (tmp_path / "conf").mkdir()
        (tmp_path / "conf" / "plain_acl.yml").write_text("globalWhiteRemoteAddresses: [127.0.0.1]\n")
        common = (*common, "aclEnable=true", f"rocketmqHome={tmp_path}", "haWhiteRemoteAddresses=127.0.0.1")
    master = start("master", "broker", *common, "haListenPort=0", f"storePathRootDir={tmp_path / 'm'}")
    master.wait_for_port()
    slave = start(
        "slave", "broker", *common, "brokerRole=SLAVE", "brokerId=1", "haListenPort=0",
        f"storePathRootDir={tmp_path / 's'}",
    )  # fmt: skip
    slave.wait_for_port()

    def status(*options: str) -> subprocess.CompletedProcess[str]:
        return mq("status", *options)

    def mq(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mqbroker.cli", "ha", *options, "-n", name_server]
        return subprocess.run(
            command, capture_output=True, text=True, env={"PYTHONPATH": SOURCE}, timeout=DEADLINE_SECONDS, check=False
        )

    wait_for(lambda: status().returncode == 0, "the slave to follow")
    first, second = status("a").stdout.splitlines()
    assert first.split("\t")[3:] == ["master", "0", "", "1 slave connected"]
    assert second.split("\t")[3:] == ["slave", "0", "0", "follows"]
    assert [json.loads(line)["broker_id"] for line in status("--json").stdout.splitlines()] == [0, 1]
    assert status("b").returncode == 1

    refused = mq("promote", "a")
    assert refused.returncode == 1
    assert "stop it first" in refused.stderr
    assert master.stop() == 0
    promoted = mq("promote", "a", "--sync")
    if not is_controlled:
        assert promoted.returncode == 1
        [line] = promoted.stderr.splitlines()
        assert line.startswith("Error: the broker refuses: CODE: 16 ")
        assert "brokerId, brokerRole: not changed by a request while access control is off" in line
        assert line.endswith("send its process SIGHUP, or set aclEnable=true and sign as an administrator")
        return
    assert promoted.returncode == 0, promoted.stderr
    assert promoted.stdout.splitlines() == [
        "changed until the next start: the broker was started without a settings file",
        f"a at {second.split(chr(9))[2]} is the master now; its log ends at 0",
    ]
    assert [line.split("\t")[1:4:2] for line in status("a").stdout.splitlines()] == [["0", "master"]]


GROUP = {
    "commitLogMaxOffset": "9", "groupEpoch": "7", "groupInSync": "1 2", "groupWhyNot": "", "groupMinInSync": "2",
    "groupKnown": "1 2", "groupRunning": "1 2", "groupCommitted": "9",
}  # fmt: skip
ELECTED = {**GROUP, "groupReplicaId": "1", "groupIsMaster": "true", "groupWhyNotConfirmed": "", "haSlave_x": "9,0,0,0,"}
REPLICA = {**GROUP, "groupReplicaId": "2", "groupIsMaster": "false", "haMaster_x": "9,0,"}


def test_a_group_that_is_well_shows_the_set_and_its_minimum() -> None:
    found = shown(net(ELECTED, REPLICA))
    assert cause_of(found) == ""
    assert found[0].state == (
        "replica 1, epoch 7, in sync; 1 slave connected; commit point 9; in sync 1 2, at least 2 must be"
    )
    assert (found[0].min_in_sync, found[0].down, found[0].committed) == (2, (), 9)


@pytest.mark.parametrize(
    ("master", "replica", "says"),
    [
        ({"groupWhyNotConfirmed": "of at least 2 only [1]"}, {}, "a acknowledges nothing: of at least 2"),
        ({"groupIsMaster": "false", "groupWhyNot": "etcd is away"}, {}, "a has no master, and acknowledges nothing"),
        ({"groupKnown": "1 2 3"}, {}, "broker 3 of a is down: start it, or see `mq ha remove`"),
        ({"groupKnown": "1 x 99999999999999999999 3"}, {}, "broker 3 of a is down"),
        ({}, {"groupNotWhole": "its disk was emptied"}, f"a at {SLAVE}: its store is incomplete: its disk was emptied"),
        ({}, {"groupWhyNot": "etcd was restored"}, f"a at {SLAVE}: etcd was restored"),
        ({}, {"groupInSync": "1", "groupReplicaId": "2"}, f"a at {SLAVE}: replica 2, epoch 7, not in sync"),
        ({}, {"haMaster_x": "9,0,no connection"}, f"a at {SLAVE}: replica 2, epoch 7, in sync; does not follow"),
        ({"haSlave_x": "9,0,0,0,not compared yet"}, {}, f"a at {MASTER}: replica 1, epoch 7, in sync; 1 slave connected"
         "; x does not count: not compared yet"),
        ({"haRefused_10.0.0.9": "another group"}, {}, "10.0.0.9 is refused: another group"),
    ],
)  # fmt: skip
def test_of_what_is_wrong_one_line_says_what_stops_most(
    master: dict[str, str], replica: dict[str, str], says: str
) -> None:
    found = shown(net({**ELECTED, **master}, {**REPLICA, **replica}))
    assert says in cause_of(found)
    assert "\n" not in cause_of(found)


def test_a_broker_that_does_not_answer_is_told_of_unless_the_group_stands_still() -> None:
    assert cause_of(shown(net(ELECTED, None))).startswith(f"a at {SLAVE}: no answer")
    assert "acknowledges nothing" in cause_of(shown(net(None, REPLICA)))


def test_a_slave_that_does_not_count_is_told_of_in_a_pair_too() -> None:
    master = {"commitLogMaxOffset": "9", "haSlave_x": "9,0,0,0,its log was not compared yet"}
    assert "does not count: its log was not compared yet" in cause_of(shown(net(master, {"commitLogMaxOffset": "9"})))


@pytest.mark.parametrize("args", [["switch", "a"], ["remove", "a"], ["switch", "a", "--to", "0"], ["remove", "9" * 30]])
def test_which_broker_is_meant_must_be_said(args: list[str]) -> None:
    done = CliRunner().invoke(cli, ["ha", *args])
    assert done.exit_code == 2
