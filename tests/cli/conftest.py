"""Fixtures of the command line's tests."""

from collections.abc import Callable

import pytest

from mqbroker.client import MessageQueue, ReceivedMessage


def _received(
    body: bytes, *, tags: str | None = None, keys: tuple[str, ...] = (), offset: int = 7, again: int = 0
) -> ReceivedMessage:
    return ReceivedMessage(
        topic="t",
        body=body,
        tags=tags,
        keys=keys,
        properties={},
        queue=MessageQueue("t", "broker-a", 2),
        queue_offset=offset,
        commit_log_offset=0,
        msg_id="id",
        offset_msg_id="id",
        born_timestamp_ms=0,
        store_timestamp_ms=0,
        born_host=("127.0.0.1", 1),
        store_host=("127.0.0.1", 2),
        reconsume_times=again,
        flag=0,
        sys_flag=0,
        store_size=100,
    )


@pytest.fixture
def received() -> Callable[..., ReceivedMessage]:
    """Makes a message as consumers get it."""
    return _received
