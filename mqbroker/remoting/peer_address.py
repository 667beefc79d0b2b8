"""The address of a peer: as text, and as records keep it."""

from __future__ import annotations

from twisted.internet.interfaces import IAddress

from mqbroker.errors import MQError
from mqbroker.wire.names import join_address
from mqbroker.wire.record import encode_host


def peer_of(address: IAddress) -> tuple[str, bytes]:
    """'address:port', and 8 bytes, or 20 for IPv6."""
    host, port = getattr(address, "host", None), getattr(address, "port", 0)
    if host is None:
        return "local", encode_host(("127.0.0.1", 0))
    host = host.removeprefix("::ffff:")
    try:
        encoded = encode_host((host, port))
    except MQError:
        encoded = encode_host(("0.0.0.0", port))
    return join_address(host, port), encoded
