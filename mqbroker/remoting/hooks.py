"""Interfaces of hooks around requests and of connection listeners: for the daemons as extensions
(`mqbroker.remoting.extensions`), for the clients as `observers` in their options. Does not import Twisted.
"""

from __future__ import annotations

from mqbroker.wire.command import RemotingCommand


class RpcHook:
    """Sees each request and its response. Of a server: those that peers send and that their accounts may send; of a
    client: those that it sends, and those that brokers send to it. `addr` is the peer as "host:port". Both methods run
    on the event loop's thread and must not block. Refused of `mqbroker.errors`, raised by either, is the response."""

    def before_request(self, addr: str, request: RemotingCommand) -> None:
        """Called before the request is handled, or signed and sent; may change its `ext_fields`. What it raises fails
        the request."""

    def after_response(self, addr: str, request: RemotingCommand, response: RemotingCommand | None) -> None:
        """Called with the response before it is sent, or used; may change it. None: there is none, as of a oneway
        request or, in a client, one that failed; or the server sends it later, as that of a held pull. What it raises
        is the response, although the request was handled."""


class ConnectionListener:
    """Is called when connections of a server, or of a client, open and end. `addr` is the peer as "host:port";
    exceptions are logged."""

    def connected(self, addr: str) -> None:
        """A connection was accepted, or made."""

    def closed(self, addr: str) -> None:
        """A connection is closed; `idle` or `failed` came before where that is why."""

    def idle(self, addr: str, why: str) -> None:
        """A connection will be closed because nothing came, or not what should have, for too long."""

    def failed(self, addr: str, why: str) -> None:
        """A connection broke, could not be made, or will be closed because its peer violated the protocol."""
