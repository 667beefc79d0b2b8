"""A clock, what was logged, and tables of handlers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from twisted.internet.task import Clock

from mqbroker.remoting.handlers import HandlerTable, IConnection
from mqbroker.wire.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand, encode_command
from tests.remoting.logs import Logged, log_kept
from tests.remoting.requests import BATCH, ECHO, LATER, OTHER_BATCH, echo

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.advance(1_700_000_000)
    return clock


@pytest.fixture(autouse=True)
def logged() -> Iterator[Logged]:
    with log_kept() as events:
        yield events


@pytest.fixture
def table() -> HandlerTable:
    table = HandlerTable()
    table.register(ECHO, echo)
    return table


@pytest.fixture
def calls() -> list[Any]:
    return []


@pytest.fixture
def batch_table(table: HandlerTable, calls: list[Any]) -> HandlerTable:
    """ECHO one by one; two codes in batches. `calls` records them all, in order."""

    def batch(code: int) -> Callable[..., bytes]:
        def handler(requests: list[tuple[dict[str, str], int, int, bytes, int]], connection: IConnection) -> bytes:
            calls.append((code, [(raw[1], raw[3]) for raw in requests]))
            return b"".join(
                encode_command(RemotingCommand(0, body=raw[3], opaque=raw[1], flag=RESPONSE_FLAG))
                for raw in requests
                if not raw[2] & ONEWAY_FLAG
            )

        return handler

    def single(request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        calls.append((LATER, request.opaque))
        return echo(request, connection)

    table.register(LATER, single)
    for code in (BATCH, OTHER_BATCH):
        table.register_batch(code, batch(code))
    return table
