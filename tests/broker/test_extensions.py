"""Extensions of the daemons: each request and connection is seen, by the compiled way too, and failures do no harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from mqbroker.broker.hooks import PullHook, ReceivedPull, ReceivedSend, SendHook
from mqbroker.config import NamesrvSettings, NettySettings
from mqbroker.errors import BadExtension, Refused
from mqbroker.namesrv.namesrv_service import make_namesrv
from mqbroker.remoting.extensions import (
    FAILURES_LOGGED_PER_MINUTE,
    ConnectionListener,
    Extensions,
    RpcHook,
    check_extensions,
    load_extensions,
)
from mqbroker.remoting.server import WATCH_SECONDS
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers.topics_and_groups import CreateTopicRequestHeader
from tests.broker.bench import Bench, send_command
from tests.remoting.logs import Logged, log_kept
from tests.samples import EXAMPLES

SENDS = 40


@pytest.fixture
def logged() -> Iterator[Logged]:
    with log_kept() as events:
        yield events


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(*members: object) -> Bench:
        made.append(Bench(tmp_path / str(len(made)), extensions=Extensions(members, lambda: 0.0)))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Rpc(RpcHook):
    def __init__(self) -> None:
        self.requests: list[int] = []
        self.responses: list[int | None] = []

    def before_request(self, addr: str, request: RemotingCommand) -> None:
        assert addr == "10.0.0.2:40000"
        self.requests.append(request.code)

    def after_response(self, addr: str, request: RemotingCommand, response: RemotingCommand | None) -> None:
        self.responses.append(None if response is None else response.code)


class Sends(SendHook):
    def __init__(self) -> None:
        self.before_ones: list[str] = []
        self.after_ones: list[Any] = []

    def before_send(self, send: ReceivedSend) -> None:
        self.before_ones.append(send.topic)

    def after_send(self, send: ReceivedSend) -> None:
        response = send.response
        assert response is not None
        self.after_ones.append((send.group, send.body, send.properties["UNIQ_KEY"], response.code))


class Pulls(PullHook):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def after_pull(self, pull: ReceivedPull) -> None:
        self.seen.append((pull.group, pull.offset, None if pull.response is None else pull.response.code))


def test_no_work_is_done_where_no_extension_is_registered(bench: Callable[..., Bench]) -> None:
    plain = set(bench().table.plain)
    assert set(bench(ConnectionListener()).table.plain) == plain
    assert set(bench(Sends()).table.plain) == plain - Sends.codes
    assert set(bench(Pulls()).table.plain) == plain - Pulls.codes
    assert not bench(RpcHook()).table.plain


@pytest.mark.parametrize("together", [1, SENDS])
def test_each_send_and_pull_is_seen_also_those_that_the_compiled_module_would_take(
    bench: Callable[..., Bench], together: int
) -> None:
    rpc, sends, pulls = Rpc(), Sends(), Pulls()
    client = bench(rpc, sends, pulls).client()
    for _ in range(SENDS // together):
        answers = client.ask_all(*(send_command(body=b"x") for _ in range(together)))
        assert [answer.code for answer in answers] == [0] * together
    for offset in (0, 0, 0, 30):
        assert client.pull(queue_offset=offset) is not None
    assert client.pull(queue_offset=SENDS, sys_flag=6) is None  # held
    send, pull = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.PULL_MESSAGE)
    assert rpc.requests == [send] * SENDS + [pull] * 5
    assert rpc.responses == [0] * (SENDS + 4) + [None]
    assert sends.before_ones == ["T"] * SENDS
    assert sends.after_ones == [("PG", b"x", "ABC", 0)] * SENDS
    assert pulls.seen == [("CG", 0, 0)] * 3 + [("CG", 30, 0), ("CG", SENDS, None)]


def test_what_an_rpc_hook_changes_is_what_is_handled_and_sent(bench: Callable[..., Bench]) -> None:
    class Change(RpcHook):
        def before_request(self, addr: str, request: RemotingCommand) -> None:
            request.ext_fields["b"] = "Other"

        def after_response(self, addr: str, request: RemotingCommand, response: RemotingCommand | None) -> None:
            assert response is not None
            response.remark = "changed"

    made = bench(Change())
    (answer,) = made.client().send("T")
    assert (answer.code, answer.remark) == (0, "changed")
    assert [record.body for record in made.records("Other")] == [b"body"]
    assert not made.records("T")


@pytest.mark.parametrize("method", ["before_request", "after_response"])
@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(1), Refused(ResponseCode.NO_PERMISSION, "no")])
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.GET_ALL_TOPIC_CONFIG])
def test_an_rpc_hook_that_raises_fails_the_request(
    bench: Callable[..., Bench], logged: Logged, method: str, error: BaseException, code: int
) -> None:
    def fail(*args: object) -> None:
        raise error

    hook = RpcHook()
    setattr(hook, method, fail)
    made = bench(hook)
    command = send_command() if code == RequestCode.SEND_MESSAGE_V2 else RemotingCommand(code)
    (answer,) = made.client().ask_all(command)
    if isinstance(error, Refused):
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "no")
        assert "failed" not in "".join(logged.lines)
    else:
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "an extension of this server failed: see the log of the server"
        assert "failed; the request fails: Traceback" in "".join(logged.lines)
    is_stored = code == RequestCode.SEND_MESSAGE_V2 and method == "after_response"
    assert len(made.records("T")) == is_stored


def test_a_send_hook_or_listener_that_raises_is_logged_and_changes_nothing(
    bench: Callable[..., Bench], logged: Logged
) -> None:
    class Bad(SendHook, ConnectionListener):
        def before_send(self, send: ReceivedSend) -> None:
            raise ZeroDivisionError

        def after_send(self, send: ReceivedSend) -> None:
            raise AssertionError("it was not called before")

        def connected(self, addr: str) -> None:
            raise ZeroDivisionError

    client = bench(Bad()).client()
    for _ in range(SENDS):
        assert client.send()[0].code == 0
    lines = [line for line in logged.lines if "failed; the operation continues: Traceback" in line]
    assert len(lines) == FAILURES_LOGGED_PER_MINUTE
    assert "Bad.connected" in lines[0]
    assert "Bad.before failed" in lines[1]


def test_listeners_hear_of_connections(bench: Callable[..., Bench]) -> None:
    class Heard(ConnectionListener):
        def __init__(self) -> None:
            self.events: list[str] = []

        def connected(self, addr: str) -> None:
            self.events.append(f"connected {addr}")

        def closed(self, addr: str) -> None:
            self.events.append(f"closed {addr}")

        def idle(self, addr: str, why: str) -> None:
            self.events.append(f"idle: {why}")

        def failed(self, addr: str, why: str) -> None:
            self.events.append(f"failed: {why}")

    heard = Heard()
    made = bench(heard)
    client = made.client()
    client.peer.transport.write(b"\xff" * 8)
    client.link.pump()
    assert heard.events[0] == "connected 10.0.0.2:40000"
    assert heard.events[1].startswith("failed: ")
    assert heard.events[2:] == ["closed 10.0.0.2:40000"]
    del heard.events[:]
    client = made.client()
    made.turn(120 + 2 * WATCH_SECONDS)
    client.link.pump()
    assert heard.events[1:] == ["idle: no traffic for 120 s", "closed 10.0.0.2:40000"]
    del heard.events[:]
    made.client().link.cut()
    assert heard.events[1:] == ["closed 10.0.0.2:40000"]


def installed(path: Path, monkeypatch: pytest.MonkeyPatch, entry_points: str) -> None:
    """Have a distribution in the path of imports."""
    info = path / "team_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: team-rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mqbroker.extensions]\n{entry_points}\n")
    monkeypatch.syspath_prepend(path)


def test_the_example_refuses_topics_of_no_team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "topic_names.py").write_text((EXAMPLES / "topic_names.py").read_text())
    installed(tmp_path, monkeypatch, "topic-names = topic_names:TopicNames")
    made = Bench(tmp_path / "store", extensions=load_extensions(["topic-names"], lambda: 0.0))
    try:
        answers = {}
        for topic in ("Orders", "shop-Orders"):
            header = CreateTopicRequestHeader(
                topic=topic,
                default_topic="TBW102",
                read_queue_nums=1,
                write_queue_nums=1,
                perm=6,
                topic_filter_type="SINGLE_TAG",
                topic_sys_flag=0,
                order=False,
            )
            answers[topic] = made.client().ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    finally:
        made.close()
    assert answers["shop-Orders"].code == 0
    refused = answers["Orders"]
    assert (refused.code, refused.remark) == (
        ResponseCode.NO_PERMISSION,
        "the topic Orders must begin with one of billing-, shop-",
    )


@pytest.mark.parametrize(
    ("entry_points", "text"),
    [
        ("other = os:getpid", "no entry point of the group mqbroker.extensions has this name: known are other; "),
        ("rules = nowhere:Rules", "it cannot be made: ModuleNotFoundError: No module named 'nowhere'"),
        ("rules = sys:exit", "it cannot be made: SystemExit"),
        ("rules = builtins:dict", "dict is not an RpcHook, SendHook, PullHook or ConnectionListener"),
    ],
)
def test_an_extension_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry_points: str, text: str
) -> None:
    installed(tmp_path, monkeypatch, entry_points)
    with pytest.raises(BadExtension) as raised:
        load_extensions(["rules"], lambda: 0.0)
    assert str(raised.value).startswith(f"extensions: rules: {text}")


def test_a_daemon_does_not_start_without_its_extensions(tmp_path: Path) -> None:
    server = NettySettings(listen_port=0, extensions=("nope",))
    files = str(tmp_path / "kv"), str(tmp_path / "conf")
    settings = NamesrvSettings(kv_config_path=files[0], config_store_path=files[1], server=server)
    with pytest.raises(BadExtension, match="extensions: nope: no entry point"):
        make_namesrv(settings, Clock())
    with pytest.raises(BadExtension, match="extensions: nope: no entry point"):
        check_extensions(["nope"])
