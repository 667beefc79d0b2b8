"""The settings of TLS: system properties of the Java system, and the file of them that it reads.

Here they are keys like all others; what stands in the file of tls.config.file counts before them, as in Java.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum

import attrs

from mqbroker.config.conf_file import Given, read_conf
from mqbroker.config.fields import boolean, settings_of, text
from mqbroker.config.kinds import parse_optional_path
from mqbroker.config.sources import Sources

DEFAULT_FILE = "/etc/rocketmq/tls.properties"

#: Not taken from that file.
_NOT_IN_FILE = ("tls.server.mode", "tls.enable", "tls.config.file")


class TlsMode(StrEnum):
    """Whether a server takes encrypted connections, and others."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(StrEnum):
    """Whether a client must show a certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


def _one_of(enum: type[StrEnum]) -> Callable[[str], StrEnum]:
    def parse(given: str) -> StrEnum:
        try:
            return enum(given.lower())
        except ValueError:
            raise ValueError(f"{given!r} is not one of {', '.join(enum)}") from None

    return parse


def _value(member: StrEnum) -> str:
    return member.value


def _hidden(secret: str) -> str:
    return "***" if secret else ""


@attrs.frozen(kw_only=True)
class TlsSettings:
    """Who encrypts, and with which files (PEM)."""

    mode: TlsMode = text(TlsMode.PERMISSIVE, _one_of(TlsMode), shown=_value, key="tls.server.mode")
    config_file: str = text(DEFAULT_FILE, parse_optional_path, key="tls.config.file")
    #: A certificate that is made at the start, for trials; clients then take any server for the right one.
    test_mode: bool = boolean(True, key="tls.test.mode.enable")
    server_need_client_auth: ClientAuth = text(
        ClientAuth.NONE, _one_of(ClientAuth), shown=_value, key="tls.server.need.client.auth"
    )
    server_key_path: str = text("", parse_optional_path, key="tls.server.keyPath")
    server_key_password: str = text("", shown=_hidden, key="tls.server.keyPassword")
    server_cert_path: str = text("", parse_optional_path, key="tls.server.certPath")
    server_auth_client: bool = boolean(False, key="tls.server.authClient")
    server_trust_cert_path: str = text("", parse_optional_path, key="tls.server.trustCertPath")
    client_key_path: str = text("", parse_optional_path, key="tls.client.keyPath")
    client_key_password: str = text("", shown=_hidden, key="tls.client.keyPassword")
    client_cert_path: str = text("", parse_optional_path, key="tls.client.certPath")
    client_auth_server: bool = boolean(False, key="tls.client.authServer")
    client_trust_cert_path: str = text("", parse_optional_path, key="tls.client.trustCertPath")
    #: Whether this daemon's own connections are encrypted; where it is not given, they are if the server enforces it.
    enable: bool = boolean(False, key="tls.enable")

    @property
    def has_server_files(self) -> bool:
        """Whether the server's certificate is read from files."""
        return not self.test_mode and self.mode is not TlsMode.DISABLED


def add_tls_file(sources: Sources, warn: Callable[[str], None]) -> None:
    """Add what the file of tls.config.file says, where there is one. Raises BadSetting."""
    named = sources.last("tls.config.file")
    path = named.value if named is not None else DEFAULT_FILE
    if not path or (path == DEFAULT_FILE and not os.path.isfile(path)):
        return
    if named is not None and not os.path.isfile(path):
        raise named.bad(f"there is no file {path}")
    known = {setting.key for setting in settings_of(TlsSettings)} - set(_NOT_IN_FILE)
    for key, value, line in read_conf(path):
        item = Given(key, value, path, line)
        if key in known:
            sources.add(item)
        else:
            warn(f"{item.where}: {key} changes nothing in this file")
