"""Hooks of extensions that see sends and pulls of a broker, with their headers decoded.

As in Java, what they raise changes nothing. An RpcHook of `mqbroker.remoting.extensions` can refuse requests.
"""

from __future__ import annotations

import attrs

from mqbroker.errors import Refused
from mqbroker.remoting.extensions import RequestHook
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import PullMessageRequestHeader, decode_header
from mqbroker.wire.headers.messages import read_send_header
from mqbroker.wire.properties import decode_properties


@attrs.define(kw_only=True)
class ReceivedSend:
    """A send request. `properties` are those of its message; of a batch, none. `response` is None before the send and
    for what has no response; its `code` is 0 if the message was stored."""

    addr: str
    group: str
    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    response: RemotingCommand | None = None


@attrs.define(kw_only=True)
class ReceivedPull:
    """A pull request. `response` is None before it, and where the broker holds the pull until messages come, which are
    not shown; the records of others are its `body`."""

    addr: str
    group: str
    topic: str
    queue_id: int
    offset: int
    response: RemotingCommand | None = None


class SendHook(RequestHook):
    """Sees each send of a producer; what it raises is logged, and the send continues."""

    codes = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})

    def before_send(self, send: ReceivedSend) -> None:
        """Called before the message is checked and stored."""

    def after_send(self, send: ReceivedSend) -> None:
        """Called before the response is sent."""

    def before(self, addr: str, request: RemotingCommand) -> ReceivedSend | None:
        """Decode the request and call `before_send`."""
        try:
            header = read_send_header(request.code, request.ext_fields)
            properties = decode_properties((header.properties or "").encode())
        except Refused:
            return None  # so is the send
        send = ReceivedSend(
            addr=addr,
            group=header.producer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            body=request.body,
            properties=properties,
        )
        self.before_send(send)
        return send

    def after(self, seen: ReceivedSend | None, response: RemotingCommand | None) -> None:
        """Call `after_send`."""
        if seen is not None:
            seen.response = response
            self.after_send(seen)


class PullHook(RequestHook):
    """Sees each pull of a consumer; what it raises is logged, and the pull continues."""

    codes = frozenset({RequestCode.PULL_MESSAGE})

    def before_pull(self, pull: ReceivedPull) -> None:
        """Called before the pull is checked."""

    def after_pull(self, pull: ReceivedPull) -> None:
        """Called before the response is sent, or when the pull is held."""

    def before(self, addr: str, request: RemotingCommand) -> ReceivedPull | None:
        """Decode the request and call `before_pull`."""
        try:
            header = decode_header(PullMessageRequestHeader, request.ext_fields)
        except Refused:
            return None
        pull = ReceivedPull(
            addr=addr,
            group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            offset=header.queue_offset,
        )
        self.before_pull(pull)
        return pull

    def after(self, seen: ReceivedPull | None, response: RemotingCommand | None) -> None:
        """Call `after_pull`."""
        if seen is not None:
            seen.response = response
            self.after_pull(seen)
