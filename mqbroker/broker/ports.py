"""The addresses of a broker: its own in records and message ids, and who may connect to its port for replication."""

from __future__ import annotations

from collections.abc import Callable

from mqbroker.access.addresses import AddressPattern, parse_pattern
from mqbroker.config import BrokerSettings, TlsMode
from mqbroker.errors import MQError
from mqbroker.wire.names import is_ip


def own_address(settings: BrokerSettings, resolve: Callable[[str], str]) -> tuple[str, str]:
    """The IP address of brokerIP1, which is in records and message ids, and what to tell of it; empty if it was given
    as an address. Raises MQError if a name has no address."""
    name = settings.broker_ip1
    if is_ip(name):
        return name, ""
    try:
        address = resolve(name)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise MQError(
            f"brokerIP1: no address of {name!r} is known to this machine: {why}; set it to a name that can be "
            "resolved, or to an address"
        ) from None
    told = f"brokerIP1={name} is {address} here: clients connect to that name"
    if ":" in address and settings.server.bind_address in ("", "0.0.0.0"):
        return address, f"{told}, but this broker serves no IPv6; set bindAddress=::"
    return address, f"{told}, and by the ids of messages to {address}"


def allowed_slaves(settings: BrokerSettings) -> AddressPattern | None:
    """The addresses from which slaves may connect: all, unless the broker is protected. None if none may.

    A link has neither accounts nor TLS. With a secret all may, and must prove that they know it unless they are in
    `exempt_slaves`. Raises BadAddress.
    """
    if settings.ha_secret_file:
        return parse_pattern("*")
    return exempt_slaves(settings)


def exempt_slaves(settings: BrokerSettings) -> AddressPattern | None:
    """The addresses from which slaves need no secret; None if all need it. Raises BadAddress."""
    if settings.ha_white_remote_addresses:
        return parse_pattern(settings.ha_white_remote_addresses)
    is_protected = settings.ha_secret_file or settings.acl_enable or settings.tls.mode is TlsMode.ENFORCING
    return None if is_protected else parse_pattern("*")
