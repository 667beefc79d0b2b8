"""Daemons and clients of both kinds with encrypted connections and certificates of both ends, by one settings file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from mqbroker.client import ClientTls
from tests.interop.fleet import Fleet
from tests.interop.java import JavaSystem
from tests.interop.peers import PeerHost
from tests.remoting.certificates import Authority


@attrs.frozen
class Encrypted:
    fleet: Fleet
    authority: Authority
    client: ClientTls


@contextmanager
def encrypted_fleet(java: JavaSystem, scratch: Path) -> Iterator[Encrypted]:
    """A fleet whose daemons and Java peers demand each other's certificates; what it has started ends with it."""
    authority = Authority(scratch)
    server, server_key = authority.issue("server", addresses=["127.0.0.1"])
    client, client_key = authority.issue("client")
    settings = {
        "tls.test.mode.enable": "false",
        "tls.server.certPath": server,
        "tls.server.keyPath": server_key,
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": authority.path,
        "tls.client.certPath": client,
        "tls.client.keyPath": client_key,
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": authority.path,
    }
    file = scratch / "tls.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    host = PeerHost(f"{scratch.name}-peers", java, scratch, jvm=["-Dtls.enable=true", f"-Dtls.config.file={file}"])
    fleet = Fleet(scratch, java, host, tls=file)
    try:
        yield Encrypted(fleet, authority, ClientTls(ca_file=authority.path, cert_file=client, key_file=client_key))
    finally:
        fleet.stop_all()
        host.kill()
