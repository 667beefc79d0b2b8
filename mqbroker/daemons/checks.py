"""What --check reads beside the settings, as the start does: certificates, keys and accounts. Nothing is written."""

from __future__ import annotations

from mqbroker.access.acl_files import acl_places, read_at_start, warnings_of
from mqbroker.config import BrokerSettings, NamesrvSettings
from mqbroker.remoting.tls import client_context, server_context


def check_files(settings: BrokerSettings | NamesrvSettings) -> list[str]:
    """What an administrator should know of the files. Raises BadTls and BadAcl, as the start would."""
    if settings.tls.has_server_files:
        server_context(settings.tls)
    if not isinstance(settings, BrokerSettings):
        return []
    if settings.client.use_tls:
        client_context(settings.tls)
    if not settings.acl_enable:
        return []
    places = acl_places(settings.rocketmq_home, settings.acl_plain_file)
    return warnings_of(read_at_start(places), places.plain_file)
