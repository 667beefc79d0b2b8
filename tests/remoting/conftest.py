"""A clock, what was logged, and tables of handlers."""

import pytest
from hypothesis import settings
from twisted.internet.task import Clock

from mqbroker.remoting.handlers import HandlerTable
from mqbroker.wire.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand, encode_command
from tests.remoting.logs import log_kept
from tests.remoting.requests import BATCH, ECHO, LATER, OTHER_BATCH, echo

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


@pytest.fixture
def clock():
    clock = Clock()
    clock.advance(1_700_000_000)
    return clock


@pytest.fixture(autouse=True)
def logged():
    with log_kept() as events:
        yield events


@pytest.fixture
def table():
    table = HandlerTable()
    table.register(ECHO, echo)
    return table


@pytest.fixture
def calls():
    return []


@pytest.fixture
def batch_table(table, calls):
    """ECHO one by one; two codes in batches. `calls` records them all, in order."""

    def batch(code):
        def handler(requests, connection):
            calls.append((code, [(raw[1], raw[3]) for raw in requests]))
            return b"".join(
                encode_command(RemotingCommand(0, body=raw[3], opaque=raw[1], flag=RESPONSE_FLAG))
                for raw in requests
                if not raw[2] & ONEWAY_FLAG
            )

        return handler

    def single(request, connection):
        calls.append((LATER, request.opaque))
        return echo(request, connection)

    table.register(LATER, single)
    for code in (BATCH, OTHER_BATCH):
        table.register_batch(code, batch(code))
    return table
