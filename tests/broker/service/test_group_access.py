"""A group that elects its master, asked by an account without any right, and by nobody, at each of its members."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address

from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from tests.access.acl import write_acl
from tests.access.test_matrix import ACL, ANYONE, key, names
from tests.broker.every_request import good_request, prepare
from tests.broker.service.group import Group
from tests.broker.test_every_code import CODES
from tests.remoting.link import CLIENT

#: In these tests the members of the group, and the operator, ask from one address, which they trust.
TRUSTING = ACL.replace("- 10.10.103.*", f"- {CLIENT.host}")
STRANGER = IPv4Address("TCP", "10.0.0.77", 40000)


def signed(kind: str) -> Callable[[RemotingCommand], None]:
    return lambda command: key(kind).sign(command.ext_fields, command.body)


def is_refusal(answer: RemotingCommand, of_master: bool) -> bool:
    """A replica refuses what changes something, and sends, whoever asks."""
    by_role = {ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.SERVICE_NOT_AVAILABLE}
    remark = answer.remark or ""
    return "AclException" in remark or (not of_master and (answer.code in by_role or "slave" in remark.lower()))


def state(group: Group) -> Any:
    """What must stay as it is: roles, epochs, the set, and each member's log and tables."""
    roles = [(replica.replica_id, replica.is_master, group.member(replica).role.epoch) for replica in group.alive()]
    tables = [
        (replica.log(), replica.parts.topics.snapshot(), replica.parts.groups.snapshot()) for replica in group.alive()
    ]
    return roles, group.in_sync(), tables


@pytest.mark.parametrize(
    ("prove", "may"), [(signed("without any right"), ANYONE), (lambda command: None, set())], ids=["account", "nobody"]
)
def test_who_has_no_right_changes_nothing_at_any_member(
    tmp_path: Path, prove: Callable[[RemotingCommand], None], may: set[RequestCode]
) -> None:
    write_acl(tmp_path / "home", TRUSTING)
    group = Group(
        tmp_path / "group",
        acl_enable=True,
        rocketmq_home=str(tmp_path / "home"),
        ha_white_remote_addresses=CLIENT.host,
    )
    for replica_id in (1, 2, 3):
        group.start(replica_id)
    master = group.master()
    group.wait_for(lambda: group.in_sync() == {1, 2, 3})
    prepared = prepare(group.client(master).send)
    # Some need half messages, which are sent by the operator.
    commands = [[good_request(code, prepared) for code in sorted(CODES)] for _ in group.alive()]
    group.wait(12)
    before = state(group)
    for replica, made in zip(group.alive(), commands, strict=True):
        client = group.client(replica, STRANGER)
        asked = {}
        for command in made:
            prove(command)
            client.tell(command)
            asked[command.opaque] = RequestCode(command.code)
        group.wait(1)
        refused = {asked[each.opaque] for each in client.heard() if is_refusal(each, replica.is_master)}
        assert names(CODES - refused) == names(may)
    group.wait(12)
    assert state(group) == before
    group.close()
