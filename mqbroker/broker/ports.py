"""Which ports a broker has beside the one of its settings, and who may connect to that of replication."""

from __future__ import annotations

from mqbroker.access.addresses import AddressPattern, parse_pattern
from mqbroker.config import BrokerSettings, TlsMode

#: Offset from the listen port of the port that Java clients use with `vipChannelEnabled`.
VIP_PORT_OFFSET = -2


def vip_port(settings: BrokerSettings) -> int | None:
    """The second port, which serves the same requests; None if there is none."""
    port = settings.server.listen_port + VIP_PORT_OFFSET
    return port if settings.vip_port_enable and port > 0 else None


def allowed_slaves(settings: BrokerSettings) -> AddressPattern | None:
    """The addresses from which slaves may connect: all, unless the broker is protected. None if none may.

    A link has neither accounts nor TLS. Raises BadAddress.
    """
    if settings.ha_white_remote_addresses:
        return parse_pattern(settings.ha_white_remote_addresses)
    is_protected = settings.acl_enable or settings.tls.mode is TlsMode.ENFORCING
    return None if is_protected else parse_pattern("*")
