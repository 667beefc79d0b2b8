"""What an ACL file says, and what is said of one that is wrong."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from mqbroker.access.accounts import AccessRefused
from mqbroker.access.acl_yaml import (
    AccountChange,
    AclFile,
    BadAcl,
    dump_acl,
    parse_acl,
    with_account,
    with_version,
    with_white,
    without_account,
)
from mqbroker.wire.access import Need, Permission
from mqbroker.wire.bodies import DataVersion
from tests.access.acl import PLAIN
from tests.remoting.logs import log_kept

PUB, SUB, DENY = Permission.PUB, Permission.SUB, Permission.DENY
ACCOUNT = "accounts:\n- accessKey: somebody\n  secretKey: very-secret\n"


def test_a_whole_file() -> None:
    file = parse_acl(PLAIN)
    alice, admin = file.accounts
    assert (alice.access_key, alice.secret_key, alice.admin) == ("alice-key", "secret-of-alice", False)
    assert (alice.default_topic, alice.default_group) == (DENY, SUB)
    assert alice.topics == {"T": PUB | SUB, "OnlySub": SUB, "OnlyPub": PUB, "Closed": DENY}
    assert alice.groups == {"CG": SUB, "Shut": DENY, "PubOnly": PUB}
    assert not alice.is_white("10.10.103.1")
    assert admin.admin
    assert admin.is_white("172.16.0.1")
    assert (admin.topics, admin.groups, admin.default_topic) == ({}, {}, DENY)
    assert [[white(address) for address in ("10.10.103.7", "192.168.0.1", "1.1.1.1")] for white in file.white] == [
        [True, False, False],
        [False, True, False],
    ]
    assert file.version == DataVersion()


def test_no_secret_is_shown() -> None:
    assert "secret-of-" not in repr(parse_acl(PLAIN))


@pytest.mark.parametrize("text", ["", "# nothing\n", "accounts:\n", "accounts: []\nglobalWhiteRemoteAddresses:", "{}"])
def test_a_file_of_nobody(text: str) -> None:
    assert (parse_acl(text).accounts, parse_acl(text).white) == ((), ())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("accounts: [", "it is not YAML: expected the node content, but found '<stream end>' in line 1, column 12"),
        ("accounts: very-secret", "accounts must be a list, not a str"),
        ("- 1", "it must hold keys such as accounts, not a list"),
        ("!!python/object:os.system {}", "it is not YAML: could not determine a constructor"),
        ("a: 2026-99-99", "it is not YAML: ValueError"),
        ("accounts: [x]", "account 1 must hold keys such as accessKey, not a str"),
        ("accounts: [{accessKey: somebody}]", "The accessKey=somebody and secretKey=*** cannot be null and length"),
        ("accounts: [{secretKey: very-secret}]", "The accessKey=None and secretKey=*** cannot be null"),
        ("accounts: [{accessKey: sixsix, secretKey: very-secret}]", "The accessKey=sixsix and secretKey=***"),
        ("accounts: [{accessKey: somebody, secretKey: short1}]", "The accessKey=somebody and secretKey=***"),
        ("accounts: [{accessKey: somebody, secretKey: 1.5}]", "secretKey of account 1 must be text, not a float"),
        (ACCOUNT + "  admin: 7\n", "admin of account somebody must be true or false"),
        (ACCOUNT + "  topicPerms: [T]\n", "Parse resource permission failed for topic:T of account somebody"),
        (ACCOUNT + "  groupPerms: [G=SUB=PUB]\n", "Parse resource permission failed for group:G=SUB=PUB of account"),
        (ACCOUNT + "  topicPerms: [T=]\n", "Parse resource permission failed for topic:T= of account somebody"),
        (ACCOUNT + "  topicPerms: T=SUB\n", "topicPerms must be a list, not a str"),
        (ACCOUNT + "  defaultTopicPerm: [SUB]\n", "defaultTopicPerm of account somebody must be text, not a list"),
        (ACCOUNT + "  whiteRemoteAddress: x\n", "Netaddress examine Exception netaddress is x (account somebody)"),
        ("globalWhiteRemoteAddresses: [host]", "Netaddress examine Exception netaddress is host (globalWhite"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_without_secrets(text: str, why: str) -> None:
    with pytest.raises(BadAcl) as caught:
        parse_acl(text)
    assert str(caught.value).startswith(why)
    assert "very-secret" not in str(caught.value)


def test_a_secret_in_broken_yaml_is_not_quoted() -> None:
    with pytest.raises(BadAcl) as caught:
        parse_acl("accounts:\n- secretKey: very-secret: [oops\n")
    assert "very-secret" not in str(caught.value)
    assert "line 2" in str(caught.value)


def test_keys_that_are_numbers_and_permissions_that_are_unknown() -> None:
    with log_kept() as logged:
        (account,) = parse_acl(
            "accounts:\n- {accessKey: 12345678, secretKey: 87654321, admin: 'TRUE', "
            "defaultTopicPerm: ALL, topicPerms: [T=ANY]}"
        ).accounts
    assert (account.access_key, account.secret_key, account.admin) == ("12345678", "87654321", True)
    assert (account.default_topic, account.topics) == (DENY, {"T": DENY})
    assert [line for line in logged.lines if "DENY" in line] == [
        "defaultTopicPerm of account 12345678 is 'ALL', which is treated as DENY",
        "T=ANY in topicPerms of account 12345678 is treated as DENY",
    ]


@pytest.mark.parametrize("secret", ["12345678", "'12345678'"])
def test_the_secret_that_everybody_knows_is_none(secret: str) -> None:
    with pytest.raises(BadAcl, match="account RocketMQ: its secretKey is that of the sample file"):
        parse_acl(f"accounts:\n- accessKey: RocketMQ\n  secretKey: {secret}\n")
    with pytest.raises(BadAcl, match="give it a long random one"):
        AccountChange("RocketMQ", "12345678").check()


def test_words_that_nobody_knows_are_told_of() -> None:
    with log_kept() as logged:
        parse_acl("acounts: []\n" + ACCOUNT + "  topicPerm: [T=SUB]\n")
        parse_acl(PLAIN + "dataVersion: []\n")
    assert [line.partition(";")[0] for line in logged.lines] == [
        "'acounts' in the file has no effect",
        "'topicPerm' in account somebody has no effect",
    ]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("dataVersion: [{counter: 3, timestamp: 1700000000000}]", DataVersion(1700000000000, 3)),
        ("dataVersion: []", DataVersion()),
        ("dataVersion: [x]", DataVersion()),
        ("dataVersion: [{counter: x, timestamp: 1}]", DataVersion()),
    ],
)
def test_the_version(text: str, version: DataVersion) -> None:
    assert parse_acl(text).version == version


@pytest.mark.parametrize(
    ("need", "why"),
    [
        (Need.of_topic("T", PUB), None),
        (Need.of_topic("T", SUB), None),
        (Need.of_topic("OnlySub", SUB), None),
        (Need.of_topic("OnlySub", PUB), "No default permission for topic:OnlySub"),
        (Need.of_topic("OnlyPub", SUB), "No default permission for topic:OnlyPub"),
        (Need.of_topic("Closed", SUB), "No default permission for topic:Closed"),
        (Need.of_topic("Other", SUB), "No default permission for topic:Other"),
        (Need("CG", SUB, True), None),
        (Need("Any", SUB, True), None),
        (Need("Shut", SUB, True), "No default permission for group:Shut"),
        (Need("PubOnly", SUB, True), "No default permission for group:PubOnly"),
        (Need.of_topic("%RETRY%CG", PUB), None),
        (Need.of_topic("%DLQ%CG", SUB), None),
        (Need.of_topic("%RETRY%Shut", PUB), "No default permission for group:Shut"),
        (Need.of_topic("%DLQ%Shut", SUB), "No default permission for group:Shut"),
    ],
)
def test_what_an_account_may_do(need: Need, why: str | None) -> None:
    alice, admin = parse_acl(PLAIN).accounts
    admin.check([need])
    if why is None:
        alice.check([need])
    else:
        with pytest.raises(AccessRefused) as caught:
            alice.check([Need.of_topic("T", PUB), need])
        assert str(caught.value) == why


def test_an_administrator_with_a_list_keeps_to_it() -> None:
    text = ACCOUNT + "  admin: true\n  topicPerms: [T=SUB]\n"
    (admin,) = parse_acl(text).accounts
    admin.check_admin(17)
    admin.check([Need.of_topic("T", SUB)])
    with pytest.raises(AccessRefused):
        admin.check([Need.of_topic("U", SUB)])


# --- changes


def change(**fields: Any) -> AccountChange:
    return AccountChange(**{"access_key": "alice-key", "secret_key": "a-new-secret", **fields})


def written(raw: Mapping[str, Any]) -> AclFile:
    return parse_acl(dump_acl(raw))


def test_a_changed_account_keeps_what_is_not_given() -> None:
    raw = parse_acl(PLAIN).raw
    file = written(with_account(raw, change(topics=["X=SUB"], white_address="1.2.3.4", admin=True)))
    admin, alice = file.accounts
    assert admin.access_key == "the-admin"
    assert (alice.secret_key, alice.admin, alice.topics) == ("a-new-secret", True, {"X": SUB})
    assert alice.groups == {"CG": SUB, "Shut": DENY, "PubOnly": PUB}
    assert alice.default_group == SUB
    assert alice.is_white("1.2.3.4")
    assert len(file.white) == 2
    assert raw == parse_acl(PLAIN).raw


def test_a_new_account_and_one_that_goes() -> None:
    raw = with_account({}, change(access_key="somebody", default_topic="PUB", default_group="", groups=[]))
    assert dump_acl(raw) == (
        "accounts:\n- accessKey: somebody\n  secretKey: a-new-secret\n  admin: false\n  defaultTopicPerm: PUB\n"
        "  groupPerms: []\n"
    )
    assert written(without_account(raw, "somebody")).accounts == ()
    assert written(without_account(raw, "nobody-else")).accounts == written(raw).accounts


def test_white_list_version_and_keys_of_others_are_kept() -> None:
    raw = with_version(with_white({"mine": [1], "accounts": None}, ["1.2.3.*"]), DataVersion(5, 6))
    assert yaml.safe_load(dump_acl(raw)) == {
        "mine": [1],
        "accounts": None,
        "globalWhiteRemoteAddresses": ["1.2.3.*"],
        "dataVersion": [{"counter": 6, "timestamp": 5}],
    }
    assert written(raw).version == DataVersion(5, 6)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"access_key": "short1"}, "The accessKey=short1 and secretKey=*** cannot be null and length"),
        ({"secret_key": ""}, "The accessKey=alice-key and secretKey=*** cannot be null and length"),
        ({"topics": ["T"]}, "Parse Resource format error for T.\nThe expected resource format is 'Res=Perm'"),
        ({"groups": ["=SUB"]}, "Parse Resource format error for =SUB.\n"),
        ({"groups": ["G=ANY"]}, "Parse resource permission error for G=ANY.\nThe expected permissions are 'SUB'"),
    ],
)
def test_a_change_that_cannot_be(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(BadAcl) as caught:
        change(**fields).check()
    assert str(caught.value).startswith(why)
    assert "a-new-secret" not in str(caught.value)
    change(topics=["T=PUB|SUB", "U=DENY"]).check()
