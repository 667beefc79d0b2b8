"""A client's identity: its id and address, and its account from a file as Java's mqadmin has it.

The address comes from the routing table; no packet is sent and no name is looked up. Errors never quote the file.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import random
import socket
from collections.abc import Callable, Sequence
from typing import Any

from mqbroker.client.address_server import address_of, is_url
from mqbroker.config.system import StampedFiles
from mqbroker.errors import MQError
from mqbroker.wire.ids import UniqIdSource
from mqbroker.wire.names import split_address
from mqbroker.wire.signature import Credentials

log = logging.getLogger(__name__)

#: Any outside address selects the interface of the default route (this one is reserved for documentation).
_OUTSIDE = ("192.0.2.1", 9)


def local_ip(name_servers: Sequence[str]) -> str:
    """This machine's address towards the first name server, or 127.0.0.1."""
    host, port = (address_of if is_url(name_servers[0]) else split_address)(name_servers[0])
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
    """Make a client id, unique for each client: brokers and group members distinguish clients by it alone."""
    return f"{ip}@{pid}#{rng.getrandbits(48):012x}"


class Identity:
    """A client's id and the ids of its messages. They belong to the process that starts it, which may be a fork of the
    one that made it."""

    def __init__(
        self, name_servers: Sequence[str], rng: random.Random, now: Callable[[], float], unit_name: str = ""
    ) -> None:
        """`now` returns seconds since the epoch."""
        self._unit_name = unit_name
        self._name_servers = name_servers
        self._rng = rng
        self._now = now
        #: As brokers know it; empty before `take`.
        self.client_id = ""
        self._ip = ""
        self._ids: UniqIdSource | None = None

    def take(self) -> None:
        """Take the identity of this process; called when the client starts."""
        self._ip = local_ip(self._name_servers)
        unit = f"@{self._unit_name}" if self._unit_name else ""
        self.client_id = make_client_id(self._ip, os.getpid(), self._rng) + unit
        self._ids = self.id_source()

    def id_source(self) -> UniqIdSource:
        """A source of message ids of its own, for one thread."""
        return UniqIdSource(self._ip, os.getpid(), self._rng.getrandbits(32), self._now)

    def become(self, other: Identity) -> None:
        """Take the identity of another, for messages, too."""
        self.client_id, self._ids, self._ip = other.client_id, other._ids, other._ip

    @property
    def next_ids(self) -> UniqIdSource:
        """Makes message ids."""
        assert self._ids is not None, "taken at the start"
        return self._ids


RIGHT = "it must have two lines: `accessKey: NAME` and `secretKey: SECRET`"

_BYTES_MAX = 64 * 1024


class BadAccount(MQError):
    """An account that cannot be used; the text names its source, and no secret."""


def read_account(path: str) -> Credentials:
    """The account in the YAML file at `path`: accessKey, secretKey, and optionally securityToken.

    Raises BadAccount.
    """
    import yaml  # only here: other clients need not load it

    try:
        with open(path, "rb") as file:
            text = file.read(_BYTES_MAX)
        found = yaml.safe_load(text)
    except OSError as error:
        raise BadAccount(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError):
        # The library's message quotes the content.
        raise BadAccount(f"{path} cannot be read as YAML; {RIGHT}") from None
    if not isinstance(found, dict):
        raise BadAccount(f"{path} holds no account; {RIGHT}")
    access_key, secret_key = found.get("accessKey"), found.get("secretKey")
    for key, value in (("accessKey", access_key), ("secretKey", secret_key)):
        if value is None or isinstance(value, (dict, list, bool)) or not str(value).strip():
            raise BadAccount(f"{path} has no {key}; {RIGHT}")
    token = found.get("securityToken")
    return Credentials(str(access_key).strip(), str(secret_key).strip(), None if token is None else str(token).strip())


class CredentialsFile:
    """The account in a file, in the format that `read_account` reads. The file is read again when it has changed, so
    that a secret can be rotated while clients run; if it is invalid then, the previous account stays. Raises
    BadAccount."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._files = StampedFiles(self._read, self.path)
        if isinstance(self._files.content, BadAccount):
            raise self._files.content
        self._account = self._files.content

    def _read(self) -> Credentials | BadAccount:
        """An invalid content is returned: to read it for each request until it has changed takes longer than the
        request."""
        try:
            return read_account(self.path)
        except BadAccount as error:
            if isinstance(error.__cause__, OSError):
                raise
            return error

    def sign(self, fields: dict[str, str], body: bytes) -> None:
        """As `Credentials.sign`."""
        former = self._files.content
        found = self._files.read_or_keep(lambda why: log.warning("keeping the former account: %s", why))
        if found is not former:
            if isinstance(found, BadAccount):
                log.warning("keeping the former account: %s", found)
            else:
                self._account = found
                log.info("the account is read again: %s", self.path)
        self._account.sign(fields, body)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CredentialsFile) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"CredentialsFile({self.path!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return CredentialsFile, (self.path,)
