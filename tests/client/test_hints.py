"""What errors advise: nothing that does harm where the cause is another one."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from mqbroker.cli.failures import failure_of
from mqbroker.client import (
    BadArgument,
    BadListener,
    BadOffsetFile,
    BatchFailed,
    Forbidden,
    HookFailed,
    Message,
    NameServerUnreachable,
    NoBrokerForTopic,
    SendFailed,
    TopicNotFound,
    UnexpectedResponse,
)
from mqbroker.client.errors import OtherLoop, TlsFailed
from mqbroker.client.tls import ClientTls, tls_failed
from mqbroker.errors import ConnectionClosed, Refused, RequestTimedOut, Unreachable
from mqbroker.spark.errors import DataLoss, Loss
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import RequestCode
from tests.client.test_producer import make
from tests.client.world import World

TLS = ClientTls(insecure=True)


@pytest.mark.parametrize("reason", ["", "unexpected eof while reading"])
def test_a_server_that_closes_in_the_handshake_is_tried_again_and_none_is_told_to_leave_tls_out(reason: str) -> None:
    error = tls_failed("h:1", TLS, reason)
    assert isinstance(error, ConnectionClosed)
    assert error.retriable
    assert "the server may be stopping" in str(error)
    assert "Leave" not in str(error)


def test_a_server_that_answers_something_else_than_tls_does_not_speak_it() -> None:
    error = tls_failed("h:1", TLS, "wrong version number")
    assert isinstance(error, TlsFailed)
    assert str(error).startswith(
        "no encrypted connection to h:1: it does not speak TLS (wrong version number). Have the"
    )


@pytest.mark.parametrize(
    ("alert", "hint"),
    [
        ("tlsv13 alert certificate required", "Show one: cert_file"),
        ("sslv3 alert handshake failure", "Show one: cert_file"),
        ("tlsv1 alert protocol version", "Look for the reason in the server's log"),
        ("tlsv1 alert internal error", "Look for the reason in the server's log"),
    ],
)
def test_a_certificate_is_asked_for_where_the_alert_is_about_one(alert: str, hint: str) -> None:
    assert hint in str(tls_failed("h:1", TLS, alert))


def why_not_found(world: World, name_server: str) -> TopicNotFound:
    with pytest.raises(TopicNotFound) as caught:
        world.result(make(world, name_server).send(Message("none", b"x")))
    return caught.value


def test_where_no_broker_is_registered_no_setting_of_brokers_is_advised(world: World, name_server: str) -> None:
    for name in ("a", "b"):
        world.cluster.unregister(name)
    error = why_not_found(world, name_server)
    assert error.why == "they do not know it, nor any broker"
    assert error.hint == "Check that a broker is running, and that its namesrvAddr lists the same name servers"


def test_where_brokers_create_no_topics_both_ways_to_have_one_are_told(world: World, name_server: str) -> None:
    world.cluster.create_no_topics()
    hint = why_not_found(world, name_server).hint
    assert hint.startswith("Create it with the mqadmin")
    assert "or set autoCreateTopicEnable=true on a broker" in hint


def test_where_the_name_server_does_not_say_both_are_told(world: World, name_server: str) -> None:
    world.cluster.create_no_topics()
    world.faults.refuse[None, RequestCode.GET_BROKER_CLUSTER_INFO] = (1, "no")
    assert "autoCreateTopicEnable" in why_not_found(world, name_server).hint


def test_a_consumer_is_not_told_to_change_a_setting_that_may_be_right() -> None:
    hint = TopicNotFound("T", ["h:1"], "they do not know it").hint
    assert hint.startswith("Brokers with autoCreateTopicEnable=true create it at the first send; otherwise create")


def test_a_send_that_failed_for_tls_has_one_hint() -> None:
    cause = TlsFailed("h:1", "its certificate has expired", "Renew it, or check the clocks")
    assert str(SendFailed("T", [("a", "h:1", cause)])).endswith("Renew it, or check the clocks")
    away: Any = SendFailed("T", [("a", "h:1", Unreachable("connect to h:1 failed"))])
    assert away.hint.startswith("The broker may be down")


@pytest.mark.parametrize(
    ("addr", "is_told"), [("127.0.0.1:9876", True), ("localhost:9876", True), ("mq.prod:9876", False)]
)
def test_a_name_server_elsewhere_is_not_replaced_by_one_of_development(addr: str, is_told: bool) -> None:
    assert ("`mq dev` starts one" in str(failure_of(NameServerUnreachable([(addr, "refused")])))) is is_told


@pytest.mark.parametrize("loss", Loss)
def test_what_may_come_back_is_looked_for_before_it_is_given_up(loss: Loss) -> None:
    text = str(DataLoss(loss, MessageQueue("T", "a", 0), "5 is asked for"))
    assert ("first. To continue" in text) is (loss is Loss.CUT_SHORT)
    assert ("`mq store check`" in text) is (loss in (Loss.NOT_DENSE, Loss.CORRUPT))


def test_an_unexpected_response_is_checked_before_an_offset_is_changed() -> None:
    """The route may be wrong, or the queue differ from the log, which has the messages: setting the offset on first
    would skip them."""
    hint = UnexpectedResponse(MessageQueue("T", "a", 0), "the broker sent offset 3 where 5 was the next one").hint
    steps = ["Leave the group's offset as it is", "mq brokers", "mq store check", "mq store repair", "set the offset"]
    assert [hint.index(step) for step in steps] == sorted(hint.index(step) for step in steps)
    assert "Only if the check reports the messages at this offset as lost, set the offset" in hint
    assert "reset" not in hint


def test_a_search_by_key_without_a_result_is_no_pull_and_changes_no_offset() -> None:
    error = UnexpectedResponse(MessageQueue("T", "a", 0), "its index has too many", is_of_index=True)
    assert str(error).startswith("Unexpected response to a search by key at a: its index has too many")
    assert "offset" not in error.hint
    assert "unknown" in error.hint


@pytest.mark.parametrize(
    "error",
    [
        BadArgument("key", "text", 5),
        BadListener("it is None", "Pass a function"),
        BadOffsetFile("/offsets.json", "it is corrupt"),
        BatchFailed([Refused(13, "no")]),
        Forbidden("too large"),
        HookFailed("Team.before_request", "it raised"),
        NameServerUnreachable([("h:1", "refused")]),
        NoBrokerForTopic("T", "no master of it is up", True),
        OtherLoop(is_closed=True),
        Refused(13, "no"),
        SendFailed("T", [("a", "h:1", RequestTimedOut("no answer"))]),
        TlsFailed("h:1", "why", "hint"),
        TopicNotFound("T", ["h:1"], "none has it"),
        UnexpectedResponse(MessageQueue("T", "a", 0), "why"),
        UnexpectedResponse(MessageQueue("T", "a", 0), "why", is_of_index=True),
    ],
)
def test_errors_reach_other_processes(error: Any) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert (str(found), found.retriable) == (str(error), error.retriable)
