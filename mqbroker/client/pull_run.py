"""Pulls of a queue on an event loop, one after the other as long as they find messages: the next one leaves as soon
as the response has arrived, before its messages are decoded, and without a coroutine, so that the broker has work.

What ends a run - nothing found, another broker to pull from, no more room, more than is decompressed at once, an error
- is left to the general path (`client/assigned_queues.py`), which also begins the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mqbroker.client.connection import Connection
from mqbroker.client.loop import Loop, complete
from mqbroker.client.messages import RawPull
from mqbroker.client.net import Puller
from mqbroker.client.queue_requests import QUEUE_OFFSET, read_pull_answer
from mqbroker.errors import MQError
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import (
    AFTER_OPAQUE,
    BEFORE_OPAQUE,
    JSON,
    RemotingCommand,
    encode_command,
    encode_frame,
    json_head,
)

#: A run ends after so long, seconds: the general path looks the route up again.
RUN_S = 1.0


class PullRun:
    """Pulls by `first` and what follows it."""

    def __init__(
        self,
        connection: Connection,
        first: RemotingCommand,
        timeout_ms: int,
        puller: Puller,
        loop: Loop,
        owner: object = None,
    ) -> None:
        self._owner = owner
        self._connection, self._first, self._timeout_ms, self._puller, self._now = (
            connection, first, timeout_ms, puller, loop.time,
        )  # fmt: skip
        self._until = loop.time() + RUN_S
        self._ended = loop.create_future()
        self._head: bytes | None = None
        self._asked = int(first.ext_fields[QUEUE_OFFSET])
        self._opaque = self._post(partial(encode_command, first))

    async def ended(self) -> RemotingCommand:
        """The first response with which the run does not go on. Raises as `Net.invoke`, and what the puller does."""
        try:
            last: RemotingCommand = await self._ended
        finally:
            self._connection.forget(self._opaque)
        return last

    def _post(self, encode: Callable[[int], bytes]) -> int:
        return self._connection.post(self._first, self._timeout_ms, self._answered, encode, self._owner)

    def _answered(self, result: RemotingCommand | MQError) -> None:
        if self._ended.done():  # it was cancelled, or its messages could not be taken
            return
        if isinstance(result, MQError) or (pulled := self._found(result)) is None:
            complete(self._ended, result)
            return
        self._asked = pulled.next_offset
        self._opaque = self._post(partial(self._encode, pulled.next_offset))
        self._connection.after_write(partial(self._take, pulled, result))

    def _found(self, answer: RemotingCommand) -> RawPull | None:
        """The messages found, if the run continues."""
        if answer.code != ResponseCode.SUCCESS or self._now() >= self._until or not self._connection.is_free:
            return None
        try:
            pulled = read_pull_answer(answer)
        except MQError:  # the general path reports the error
            return None
        return pulled if pulled.next_offset > self._asked and self._puller.goes_on(pulled) else None

    def _take(self, pulled: RawPull, answer: RemotingCommand) -> None:
        if self._ended.done():
            return
        try:
            if not self._puller.take(pulled):
                self._ended.set_result(answer)
        except Exception as error:
            self._ended.set_exception(error)

    def _encode(self, offset: int, opaque: int) -> bytes:
        if self._head is None:
            self._head = json_head(self._first, without=(QUEUE_OFFSET,)) + f',"{QUEUE_OFFSET}":'.encode()
        return encode_frame(JSON, b'%b"%d"%b%d%b' % (self._head, offset, BEFORE_OPAQUE, opaque, AFTER_OPAQUE))
