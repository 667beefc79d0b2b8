"""No text of a peer outlives its request at a name server unless its length was checked."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from mqbroker.wire.codes import RequestCode as Code
from mqbroker.wire.command import RemotingCommand, encode_command
from mqbroker.wire.headers import camel_case
from mqbroker.wire.registration import encode_registration
from mqbroker.wire.requests import REQUESTS
from tests.kept_texts import kept_texts, long_text
from tests.namesrv.conftest import System
from tests.namesrv.test_every_request import BROKER, body_of, register

LENGTH = 100_000


def requests() -> Iterator[RemotingCommand]:
    for code, row in REQUESTS.items():
        names = [
            field.metadata.get("key") or camel_case(field.name)
            for field in (attrs.fields(row.header) if row.header is not None else ())  # type: ignore[arg-type]
        ]
        good = {name: str(BROKER.get(name, "0")) for name in names}
        for name in names:
            yield RemotingCommand(code, {**good, name: long_text(f"{code}-{name}", LENGTH)}, version=407)
        yield RemotingCommand(code, good, long_text(f"{code}-body", 60_000).encode(), version=407)
    for compressed in (False, True):
        for long in (body_of(long_text("topic", 900)), body_of("T", servers=(long_text("server", LENGTH),))):
            body = encode_registration(long, compressed=compressed)
            fields = {**BROKER, "compressed": str(compressed).lower()}
            yield RemotingCommand(Code.REGISTER_BROKER, {k: str(v) for k, v in fields.items()}, body, version=407)


def test_no_long_text_outlives_its_request(system: System) -> None:
    broker = system.connect()
    register(broker, "T")
    for request in requests():
        peer = system.connect()
        peer.send(encode_command(request))
        system.reactor.pump([0.001] * 20)
        peer.close()
    assert kept_texts(system, longest=1024) == []
    # What is meant to be kept is found.
    fields = {"namespace": "n", "key": "k", "value": long_text("value", LENGTH)}
    broker.send(encode_command(RemotingCommand(Code.PUT_KV_CONFIG, fields)))
    assert kept_texts(system, longest=1024) == [long_text("value", 60)]
