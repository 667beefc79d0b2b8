"""What an administrator should know of settings that are right, and may yet not be what he wants: told at a start, and
by --check."""

from __future__ import annotations

from mqbroker.config import BrokerSettings, NamesrvSettings, TlsMode

_LOOPBACK = ("127.", "::1")


def advice(settings: BrokerSettings | NamesrvSettings) -> list[str]:
    """One line each."""
    found = []
    if isinstance(settings, BrokerSettings) and not settings.namesrv_addr:
        found.append(
            "no name server is set, so this broker registers nowhere and only who knows its address finds it; "
            "set namesrvAddr, the environment's NAMESRV_ADDR or -n"
        )
    exposed = _exposed(settings)
    return found if exposed is None else [*found, exposed]


def _exposed(settings: BrokerSettings | NamesrvSettings) -> str | None:
    server, tls = settings.server, settings.tls
    is_broker = isinstance(settings, BrokerSettings)
    controlled = isinstance(settings, BrokerSettings) and settings.acl_enable
    encrypted = tls.mode is TlsMode.ENFORCING and not tls.test_mode
    if controlled or encrypted or server.bind_address.startswith(_LOOPBACK):
        return None
    # A name server has no accounts.
    ways = "aclEnable, tls.server.mode" if is_broker else "tls.server.mode with tls.server.need.client.auth"
    can = "read, write and delete" if is_broker else "register brokers and delete routes"
    return (
        f"SERVING {server.bind_address or 'ALL ADDRESSES'} WITHOUT ACCESS CONTROL OR ENCRYPTION: whoever reaches port "
        f"{server.listen_port} can {can}; set bindAddress=127.0.0.1, or let only those in who may ({ways})"
    )
