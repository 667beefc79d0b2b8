"""Who may connect to a broker's port for replication."""

from __future__ import annotations

from mqbroker.access.addresses import AddressPattern, parse_pattern
from mqbroker.config import BrokerSettings, TlsMode


def allowed_slaves(settings: BrokerSettings) -> AddressPattern | None:
    """The addresses from which slaves may connect: all, unless the broker is protected. None if none may.

    A link has neither accounts nor TLS. Raises BadAddress.
    """
    if settings.ha_white_remote_addresses:
        return parse_pattern(settings.ha_white_remote_addresses)
    is_protected = settings.acl_enable or settings.tls.mode is TlsMode.ENFORCING
    return None if is_protected else parse_pattern("*")
