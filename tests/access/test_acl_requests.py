"""Accounts as administrators see and change them, codes 50 to 54, and files that change by themselves."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from twisted.internet.task import Clock

from mqbroker.access.acl_files import WATCH_SECONDS, AclFiles, acl_places
from mqbroker.access.acl_yaml import BadAcl
from mqbroker.store.worker import InlineWorker
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.signature import Credentials
from tests.access.acl import ADMIN, ALICE, PLAIN, signed, write_acl
from tests.access.test_guard import refusal, sending
from tests.broker.bench import START, Bench
from tests.broker.every_request import Field, fields_of, text_for, wrong_values
from tests.fakes import SteppedWorker
from tests.remoting.logs import Logged

PUT, DELETE = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, RequestCode.DELETE_ACL_CONFIG
WHITE, VERSIONS = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, RequestCode.GET_BROKER_CLUSTER_ACL_INFO
SHOW = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
BOB = Credentials("bobs-key", "secret-of-bob")
BOBS = {"accessKey": BOB.access_key, "secretKey": BOB.secret_key, "admin": "false", "topicPerms": "T=PUB, U=SUB"}


def ask(bench: Bench, code: int, **fields: str) -> RemotingCommand:
    (answer,) = bench.client().ask_all(signed(ADMIN, code, fields))
    return answer


def plain(home: Path) -> dict[str, Any]:
    return yaml.safe_load((home / "conf/plain_acl.yml").read_text())


def test_a_new_account_counts_and_is_on_the_disk(bench: Bench, home: Path, logged: Logged) -> None:
    assert refusal(bench, sending(BOB)) == "No acl config for bobs-key"
    assert ask(bench, PUT, **BOBS).code == ResponseCode.SUCCESS
    assert refusal(bench, sending(BOB)) is None
    assert refusal(bench, sending(BOB, "U")) == "No default permission for topic:U"
    assert plain(home)["accounts"][-1] == {
        "accessKey": "bobs-key", "secretKey": "secret-of-bob", "admin": False, "topicPerms": ["T=PUB", "U=SUB"],
    }  # fmt: skip
    assert plain(home)["dataVersion"] == [{"counter": 1, "timestamp": START * 1000}]
    assert (home / "conf/plain_acl.yml.bak").read_text() == PLAIN
    assert [line for line in logged.lines if line.endswith("changed account bobs-key")]
    assert "secret-of" not in "".join(logged.lines)


def test_a_changed_account(bench: Bench, home: Path) -> None:
    lists = {"topicPerms": "", "groupPerms": ""}
    fields = {"accessKey": "alice-key", "secretKey": "another-secret", "admin": "true"}
    assert ask(bench, PUT, **fields, **lists).code == ResponseCode.SUCCESS
    assert refusal(bench, sending(ALICE)) == "Check signature failed for accessKey=alice-key"
    assert refusal(bench, sending(Credentials("alice-key", "another-secret"), "Anything")) is None


def test_an_account_that_goes(bench: Bench, home: Path) -> None:
    assert ask(bench, DELETE, accessKey="alice-key").code == ResponseCode.SUCCESS
    assert refusal(bench, sending(ALICE)) == "No acl config for alice-key"
    answer = ask(bench, DELETE, accessKey="alice-key")
    assert answer.code == ResponseCode.DELETE_ACL_CONFIG_FAILED
    assert answer.remark == "The accesskey[alice-key] corresponding to accessConfig has been deleted failed."
    assert len(plain(home)["accounts"]) == 1


@pytest.mark.parametrize("path", [None, "", "plain"])
def test_the_global_white_list(bench: Bench, home: Path, path: str | None) -> None:
    more = {} if path is None else {"aclFileFullPath": str(home / "conf/plain_acl.yml") if path else ""}
    assert ask(bench, WHITE, globalWhiteAddrs="10.0.0.2, 1.2.3.*", **more).code == ResponseCode.SUCCESS
    assert plain(home)["globalWhiteRemoteAddresses"] == ["10.0.0.2", "1.2.3.*"]
    assert refusal(bench, sending(Credentials("nobody", "nothing"))) is None
    assert refusal(bench, sending(BOB), host="192.168.0.1") == "No acl config for bobs-key"


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "conf/plain_acl.yml.bak", "\0"])
def test_no_other_file_is_written_to(bench: Bench, home: Path, path: str) -> None:
    before = plain(home)
    answer = ask(bench, WHITE, globalWhiteAddrs="1.2.3.4", aclFileFullPath=path)
    assert answer.code == ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
    assert answer.remark == "The globalWhiteAddresses[1.2.3.4] has been updated failed."
    assert plain(home) == before


@pytest.mark.parametrize(
    ("code", "fields", "wanted", "remark"),
    [
        (PUT, {"accessKey": "short"}, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
         "The accessKey=short and secretKey=*** cannot be null and length should longer than 6"),
        (PUT, {**BOBS, "topicPerms": "T"}, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
         "Parse Resource format error for T.\nThe expected resource format is 'Res=Perm'. For example: topicA=SUB"),
        (PUT, {**BOBS, "whiteRemoteAddress": "host"}, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
         "Netaddress examine Exception netaddress is host (account bobs-key)"),
        (PUT, {}, ResponseCode.SYSTEM_ERROR, "the custom field <accessKey> is null"),
        (DELETE, {}, ResponseCode.SYSTEM_ERROR, "the custom field <accessKey> is null"),
        (WHITE, {}, ResponseCode.SYSTEM_ERROR, "the custom field <globalWhiteAddrs> is null"),
        (WHITE, {"globalWhiteAddrs": "host"}, ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
         "Netaddress examine Exception netaddress is host (globalWhiteRemoteAddresses)"),
    ],
)  # fmt: skip
def test_a_change_that_cannot_be_changes_nothing(
    bench: Bench, home: Path, code: int, fields: dict[str, str], wanted: int, remark: str
) -> None:
    answer = ask(bench, code, **fields)
    assert (answer.code, answer.remark) == (wanted, remark)
    assert (home / "conf/plain_acl.yml").read_text() == PLAIN


def test_the_accounts_are_shown_without_secrets(bench: Bench, home: Path) -> None:
    write_acl(home, "accounts:\n- {accessKey: 7777777, secretKey: secret-of-seven}\n", "conf/acl/more.yaml")
    bench.turn(WATCH_SECONDS)
    bench.acl.look()
    answer = ask(bench, SHOW)
    assert b"secret" not in answer.body
    shown = json.loads(answer.body)
    assert shown["globalWhiteAddrs"] == ["10.10.103.*", "192.168.0.*"]
    assert shown["plainAccessConfigs"] == [
        {"accessKey": "7777777", "admin": False},
        {
            "accessKey": "alice-key", "admin": False, "defaultTopicPerm": "DENY", "defaultGroupPerm": "SUB",
            "topicPerms": ["T=PUB|SUB", "OnlySub=SUB", "OnlyPub = PUB", "Closed=DENY"],
            "groupPerms": ["CG=SUB", "Shut=DENY", "PubOnly=PUB"],
        },
        {"accessKey": "the-admin", "admin": True, "whiteRemoteAddress": "172.16.0.1"},
    ]  # fmt: skip


def test_versions_count_changes(bench: Bench, home: Path) -> None:
    path = str(home / "conf/plain_acl.yml")
    for counter in range(3):
        fields = ask(bench, VERSIONS).ext_fields
        timestamp = START * 1000 if counter else 0
        assert json.loads(fields["version"]) == {"timestamp": timestamp, "counter": counter}
        assert json.loads(fields["allAclFileVersion"]) == {path: {"timestamp": timestamp, "counter": counter}}
        assert (fields["brokerName"], fields["brokerAddr"], fields["clusterName"]) == (
            "broker-a", "10.0.0.1:10911", "DefaultCluster",
        )  # fmt: skip
        ask(bench, WHITE, globalWhiteAddrs=f"1.1.1.{counter}")


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (PUT, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED),
        (DELETE, ResponseCode.DELETE_ACL_CONFIG_FAILED),
        (WHITE, ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED),
        (VERSIONS, ResponseCode.SYSTEM_ERROR),
        (SHOW, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_without_access_control_it_is_said_so(tmp_path: Path, code: int, wanted: int) -> None:
    bench = Bench(tmp_path / "open")
    answer = ask(bench, code, **BOBS, globalWhiteAddrs="*")
    assert (answer.code, answer.remark) == (wanted, "this broker controls no access: set aclEnable=true")
    bench.close()


# --- files


def test_a_changed_file_counts_when_it_was_looked_at(bench: Bench, home: Path, logged: Logged) -> None:
    write_acl(home, PLAIN.replace("secret-of-alice", "a-new-secret"))
    assert refusal(bench, sending(ALICE)) is None
    bench.acl.look()
    assert refusal(bench, sending(ALICE)) == "Check signature failed for accessKey=alice-key"
    read = [line for line in logged.lines if "reloaded" in line]
    bench.acl.look()
    assert [line for line in logged.lines if "reloaded" in line] == read != []


def test_files_that_come_and_go(bench: Bench, home: Path) -> None:
    path = write_acl(home, f"accounts:\n- {{accessKey: {BOB.access_key}, secretKey: {BOB.secret_key}, admin: true}}\n",
                     "conf/acl/team/bob.yml")  # fmt: skip
    write_acl(home, "no YAML: [", "conf/acl/notes.txt")
    bench.acl.look()
    assert refusal(bench, sending(BOB)) is None
    path.unlink()
    bench.acl.look()
    assert refusal(bench, sending(BOB)) == "No acl config for bobs-key"


def test_a_change_goes_to_the_file_that_has_the_account(bench: Bench, home: Path) -> None:
    path = write_acl(home, "accounts:\n- {accessKey: bobs-key, secretKey: secret-of-none}\n", "conf/acl/bob.yml")
    os.chmod(path, 0o640)
    bench.acl.look()
    assert ask(bench, PUT, **BOBS).code == ResponseCode.SUCCESS
    assert yaml.safe_load(path.read_text())["accounts"][0]["secretKey"] == "secret-of-bob"
    assert path.stat().st_mode & 0o777 == 0o640
    assert (home / "conf/plain_acl.yml").read_text() == PLAIN
    white = ask(bench, WHITE, globalWhiteAddrs="10.0.0.2", aclFileFullPath=str(path))
    assert white.code == ResponseCode.SUCCESS
    assert yaml.safe_load(path.read_text())["globalWhiteRemoteAddresses"] == ["10.0.0.2"]


def test_an_account_in_two_files_is_that_of_the_first(
    make_bench: Callable[..., Bench], home: Path, logged: Logged
) -> None:
    write_acl(home, "accounts:\n- {accessKey: alice-key, secretKey: from-the-first, admin: true}\n", "conf/acl/a.yml")
    bench = make_bench()
    assert refusal(bench, sending(Credentials("alice-key", "from-the-first"))) is None
    assert refusal(bench, sending(ALICE)) == "Check signature failed for accessKey=alice-key"
    assert [line for line in logged.lines if "is already defined" in line] == [
        f"{home}/conf/plain_acl.yml: account alice-key is already defined"
    ]


def test_a_file_that_went_bad_goes_on_to_count_as_it_was(bench: Bench, home: Path, logged: Logged) -> None:
    write_acl(home, "accounts: [")
    for _ in range(3):
        bench.acl.look()
    assert refusal(bench, sending(ALICE)) is None
    assert len([line for line in logged.lines if "its previous content stays in effect" in line]) == 1
    write_acl(home, "")
    bench.acl.look()
    assert refusal(bench, sending(ALICE)) == "No acl config for alice-key"


def test_a_change_to_a_file_that_went_bad_is_refused(bench: Bench, home: Path) -> None:
    write_acl(home, "accounts: [")
    answer = ask(bench, PUT, **BOBS)
    assert answer.code == ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    assert "it is not YAML" in (answer.remark or "")
    assert (home / "conf/plain_acl.yml").read_text() == "accounts: ["


@pytest.mark.parametrize("text", ["accounts: [", "accounts: [{accessKey: aaaaaaa, secretKey: bad}]"])
def test_a_broker_does_not_start_with_a_bad_file(make_bench: Callable[..., Bench], home: Path, text: str) -> None:
    write_acl(home, text)
    with pytest.raises(BadAcl, match=r"conf/plain_acl\.yml: "):
        make_bench()


def test_without_a_file_nobody_could_be_served_so_there_is_no_start(
    make_bench: Callable[..., Bench], home: Path
) -> None:
    path = home / "conf/plain_acl.yml"
    path.unlink()
    with pytest.raises(BadAcl, match=f"{path}: there is no such file, nor one in {home}/conf/acl"):
        AclFiles(acl_places(str(home), "conf/plain_acl.yml"), InlineWorker(), Clock())
    write_acl(home, name="conf/acl/one.yml")
    assert refusal(make_bench(), sending(ALICE)) is None


def test_a_file_that_is_taken_away_leaves_nobody_who_is_served(bench: Bench, home: Path) -> None:
    (home / "conf/plain_acl.yml").unlink()
    bench.turn(6)
    bench.acl.look()
    assert refusal(bench, sending(ALICE)) == "No acl config for alice-key"
    write_acl(home)
    bench.acl.look()
    assert refusal(bench, sending(ALICE)) is None


@pytest.mark.parametrize("text", ["", "accounts: []", "globalWhiteRemoteAddresses: [10.1.*.*]"])
def test_a_file_without_accounts_is_told_of(
    make_bench: Callable[..., Bench], home: Path, logged: Logged, text: str
) -> None:
    path = write_acl(home, text)
    make_bench()
    assert f"no file of accounts has one, {path} neither: nobody can sign a request" in logged.lines


def test_who_has_access_is_told_at_the_start_without_secrets(
    make_bench: Callable[..., Bench], home: Path, logged: Logged
) -> None:
    path = home / "conf" / "plain_acl.yml"
    path.chmod(0o600)
    make_bench()
    assert f"access control is on: 2 accounts, 1 of them administrators, in {path}" in logged.lines
    assert not [line for line in logged.lines if "secret-of" in line or "can be read by others" in line]


def test_a_file_that_others_can_read_is_told_of(make_bench: Callable[..., Bench], home: Path, logged: Logged) -> None:
    path = home / "conf" / "plain_acl.yml"
    path.chmod(0o640)
    make_bench()
    assert [line for line in logged.lines if "can be read by others" in line] == [
        f"{path} can be read by others, who can sign as anybody in it: chmod 600 {path}"
    ]


def test_a_file_that_is_made_is_for_the_owner_only(make_bench: Callable[..., Bench], home: Path) -> None:
    (home / "conf/plain_acl.yml").unlink()
    write_acl(home, PLAIN, "conf/acl/all.yml")
    bench = make_bench()
    assert ask(bench, PUT, **BOBS).code == ResponseCode.SUCCESS
    assert (home / "conf/plain_acl.yml").stat().st_mode & 0o777 == 0o600
    assert refusal(bench, sending(BOB)) is None


def test_a_disk_that_cannot_be_written_to(bench: Bench, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, data: bytes) -> None:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr("mqbroker.access.acl_files.replace_file", full)
    answer = ask(bench, PUT, **BOBS)
    assert answer.code == ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    assert answer.remark == "the accounts could not be written: No space left on device"
    assert refusal(bench, sending(BOB)) == "No acl config for bobs-key"


def test_changes_at_the_same_time_come_one_after_another(make_bench: Callable[..., Bench], home: Path) -> None:
    bench = make_bench(table_worker=SteppedWorker(at_once=False))
    client = bench.client()
    commands = [
        signed(ADMIN, PUT, {**BOBS, "accessKey": f"account-{n}"}) for n in range(4)
    ]  # fmt: skip
    assert client.ask_all(*commands) == []
    bench.acl.look()
    assert len(bench.table_worker.waiting) == 1
    bench.table_worker.work()
    assert [answer.code for answer in client.heard()] == [0, 0, 0, 0]
    assert [account["accessKey"] for account in plain(home)["accounts"]][2:] == [f"account-{n}" for n in range(4)]
    assert plain(home)["dataVersion"][0]["counter"] == 4


def test_the_watch_is_on_the_brokers_list(bench: Bench, home: Path) -> None:
    assert (WATCH_SECONDS, bench.acl.look) in bench.parts.periodic()


def test_a_look_that_fails_is_logged_and_changes_nothing(
    make_bench: Callable[..., Bench], home: Path, logged: Logged
) -> None:
    bench = make_bench(table_worker=SteppedWorker(at_once=False))
    looked = bench.acl.look()
    bench.table_worker.fail(RuntimeError("oops"))
    assert looked.called
    assert [failure.getErrorMessage() for failure in logged.failures] == ["oops"]
    del logged[:]
    assert refusal(bench, signed(ALICE, RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})) is None


FAILED: dict[int, ResponseCode] = {
    PUT: ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
    DELETE: ResponseCode.DELETE_ACL_CONFIG_FAILED,
    WHITE: ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
}


@pytest.mark.parametrize(
    "field", [field for code in FAILED for field in fields_of(code)], ids=lambda field: f"{field.code:d}-{field.key}"
)
def test_a_wrong_field(bench: Bench, home: Path, logged: Logged, field: Field) -> None:
    all_good = {PUT: BOBS, DELETE: {"accessKey": "bobs-key"}, WHITE: {"globalWhiteAddrs": "10.9.9.9"}}
    good = all_good[RequestCode(field.code)]
    for how, text in wrong_values(field):
        if text is None:
            continue
        before = (home / "conf/plain_acl.yml").read_text()
        answer = ask(bench, field.code, **{**good, field.key: text_for(field, how, text)})
        assert answer.code in (ResponseCode.SUCCESS, FAILED[field.code]), how
        if answer.code:
            assert answer.remark
            assert not re.search(r"Traceback|Error\b", answer.remark), answer.remark
            assert (home / "conf/plain_acl.yml").read_text() == before, how
        assert ask(bench, VERSIONS).code == ResponseCode.SUCCESS
        assert refusal(bench, sending(ALICE)) is None
    assert logged.failures == []
