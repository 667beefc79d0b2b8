"""Who a client says it is. The address comes from the routing table; no packet is sent and no name is looked up."""

from __future__ import annotations

import ipaddress
import random
import socket
from collections.abc import Sequence

from mqbroker.client.options import split_address

#: Any outside address gives the interface of the default route (this one is reserved for documentation).
_OUTSIDE = ("192.0.2.1", 9)


def local_ip(name_servers: Sequence[str]) -> str:
    """The address this machine would use towards the first name server, or 127.0.0.1."""
    host, port = split_address(name_servers[0])
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        (host, port), version = _OUTSIDE, 4
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def make_client_id(ip: str, pid: int, rng: random.Random) -> str:
    """Unique for each client: brokers and group members tell clients apart by it alone."""
    return f"{ip}@{pid}#{rng.getrandbits(48):012x}"
