"""The Java client in modes that take a while, on our system and on Java's: the same story, event by event."""

import json
from typing import get_args

import pytest

from tests.interop.fleet import Broker, Fleet, Kind, Namesrv
from tests.interop.peers import Peer

#: Of each mode how many queues its topic has, and whether it traces.
MODES: dict[str, dict[str, object]] = {
    "retry": {},
    "dead-letter": {},
    "suspend": {},
    "orderly-give-up": {},
    "delay": {},
    "trace": {"trace": True},
    "request": {},
    "request-unanswered": {},
    "pull": {},
    "lite-assign": {"queues": 2},
    "lite-subscribe": {"queues": 2},
    "query": {},
    "sql": {},
}

TOPIC = "Mode-{}"


@pytest.fixture(scope="module")
def peers(
    shared_fleet: Fleet,
    our_namesrv: Namesrv,
    our_broker: Broker,
    java_namesrv: Namesrv,
    java_broker: Broker,
) -> dict[tuple[Kind, str], Peer]:
    """All modes of one system at once, for they wait most of the time."""
    systems: dict[Kind, tuple[Namesrv, Broker]] = {
        "ours": (our_namesrv, our_broker),
        "java": (java_namesrv, java_broker),
    }
    peers = {}
    for kind, (namesrv, broker) in systems.items():
        for mode, options in MODES.items():
            more = {"broker": broker.addr, "topic": TOPIC.format(mode), "mode": mode, **options}
            peers[kind, mode] = shared_fleet.peer("mode", namesrv, **more)
        for mode in MODES:
            peers[kind, mode].wait()
    return peers


def _as_ours(line: str) -> str:
    """After a queue's last message Java's search by time finds that message again, ours the end of the queue."""
    event = json.loads(line)
    if event["event"] == "by time" and "beyond" in event:
        assert event["beyond"] == event["max"] - 1
        event["beyond"] = event["max"]
    return json.dumps(event)


@pytest.mark.parametrize("mode", MODES)
def test_the_same_story(peers: dict[tuple[Kind, str], Peer], mode: str) -> None:
    kinds: tuple[Kind, ...] = get_args(Kind)
    for kind in kinds:
        peers[kind, mode].finish()
    java = peers["java", mode].story()
    assert java
    assert peers["ours", mode].story() == [_as_ours(line) for line in java]
