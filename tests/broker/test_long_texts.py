"""No text of a peer outlives its request unless its length was checked: each field of each request, and each text of
each body, as long as a frame's header or the body may be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address

from mqbroker.store import consumequeue_dispatcher, index, logscan
from mqbroker.wire.codes import RequestCode as Code
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import encode_header
from mqbroker.wire.signature import Credentials
from tests.access.acl import ADMIN, ALICE, write_acl
from tests.broker.bench import Bench, pull_header, send_command
from tests.broker.every_request import HEADERS, fields_of, good_request, prepare
from tests.kept_texts import kept_texts, long_text

PROPERTIES = ("KEYS", "TAGS", "UNIQ_KEY", "PGROUP", "DELAY", "REPLY_TO_CLIENT", "RETRY_TOPIC", "MSG_REGION")
#: Names have 255 characters at most, keys and tags of messages are kept to the same length.
LONGEST = 1024
LENGTH = 100_000


def long_bodies(value: Any, name: str) -> Iterator[Any]:
    """The value with each of its texts long, one at a time, in turn as a key and as a value."""
    if isinstance(value, str):
        yield long_text(name, LENGTH)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        for longer in long_bodies(item, f"{name}-{key}"):
            yield {**value, key: longer} if isinstance(value, dict) else [*value[:key], longer, *value[key + 1 :]]


def requests_of(ask: Callable[[RemotingCommand], RemotingCommand]) -> Iterator[RemotingCommand]:
    prepared = prepare(ask)
    for code in HEADERS:
        good = good_request(code, prepared)
        for field in fields_of(code):
            text = long_text(f"{code}-{field.key}", LENGTH)
            yield RemotingCommand(code, {**good.ext_fields, field.key: text}, good.body, version=good.version)
        yield RemotingCommand(code, {**good.ext_fields, long_text(f"{code}-name", LENGTH): "x"}, good.body)
        yield RemotingCommand(code, good.ext_fields, long_text(f"{code}-body", 60_000).encode())
        try:
            value = json.loads(good.body)
        except ValueError:
            continue
        for body in long_bodies(value, str(code)):
            yield RemotingCommand(code, good.ext_fields, json.dumps(body).encode())
    for code in (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE):
        good = good_request(code, prepared)
        for name in PROPERTIES:
            text = f"{name}\x01{long_text(name, 30_000)}"
            yield RemotingCommand(code, {**good.ext_fields, "i": text}, good.body)


def ask_all(bench: Bench, address: IPv4Address, credentials: Credentials | None) -> int:
    def signed(command: RemotingCommand) -> RemotingCommand:
        if credentials is not None:
            credentials.sign(command.ext_fields, command.body)
        return command

    lasting = bench.client(address)
    count = 0
    for request in requests_of(lambda asked: next(a for a in lasting.ask_all(signed(asked)) if a.is_response)):
        client = bench.client(address)
        client.tell(signed(request))
        bench.turn(0.5)
        client.link.cut()
        count += 1
    bench.store.dispatch_now()
    bench.turn(10)
    return count


@pytest.mark.parametrize("has_compiled", [False, True])
@pytest.mark.parametrize("acl", [False, True])
def test_no_long_text_outlives_its_request(
    make_bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acl: bool, has_compiled: bool
) -> None:
    if not has_compiled:
        for module in (index, logscan, consumequeue_dispatcher):
            if hasattr(module, "compiled"):
                monkeypatch.setattr(module, "compiled", None)
    write_acl(tmp_path / "home")
    bench = make_bench("long", acl_enable=acl, rocketmq_home=str(tmp_path / "home"))
    address = IPv4Address("TCP", "172.16.0.1" if acl else "10.0.0.2", 40000)
    assert ask_all(bench, address, ADMIN if acl else None) > 300
    if acl:  # as the compiled module takes them, of an account that may not do all
        client = bench.client(IPv4Address("TCP", "10.0.0.2", 40000))
        for command in (
            send_command(long_text("plain-send", LENGTH), queue_id=0),
            RemotingCommand(Code.PULL_MESSAGE, encode_header(pull_header(long_text("plain-pull", LENGTH)))),
        ):
            ALICE.sign(command.ext_fields, command.body)
            assert client.ask_all(command)[0].code != 0
        client.link.cut()
    # Accounts are as an administrator wrote them.
    kept = [text for text in kept_texts(bench, longest=LONGEST) if not text.startswith("kept-50-")]
    assert kept == []
