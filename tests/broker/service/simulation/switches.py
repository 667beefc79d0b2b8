"""Planned changes of the master, in runs of a group."""

from __future__ import annotations

from collections import Counter

from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from tests.broker.service.group import Client, Group, Replica


def asked_for_another(group: Group, master: Replica, to: int) -> Client:
    """Ask the master that broker `to` be it; returns where the answer comes."""
    client = group.client(master)
    client.tell(RemotingCommand.request(RequestCode.SWITCH_GROUP_MASTER, None, b"%d" % to))
    return client


def still_open(clients: list[Client], counts: Counter[str]) -> list[Client]:
    """Count what was done; returns the clients whose connections are open."""
    for client in clients:
        counts["switched"] += sum(answer.code == ResponseCode.SUCCESS for answer in client.heard())
    return [client for client in clients if not client.link.lost]
