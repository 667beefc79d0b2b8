"""Proof that both ends of a replication link know one secret, without I/O: it comes before anything else.

    slave to master    -4  8 | nonce  32
    master to slave    -4  8 | size  4 | nonce  32 | where its log begins  8 | where it ends  8 | proof  32
    slave to master    -4  8 | offset of its last record  8 | digest of that  32 | proof  32

A proof is the HMAC-SHA256, with the secret, of the sender's role, the names of the cluster and of the broker, both
nonces, and the rest of the message. So neither a recorded message nor the peer's own can be replayed. The first
message is of negative numbers only, which a Java master takes for offsets that confirm nothing.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import sha256
from struct import Struct

import attrs

from mqbroker.config import BrokerSettings
from mqbroker.errors import MQError
from mqbroker.ha.link import HEADER, REPORT, BadPeer

#: Sentinel in place of an offset.
PROOF = -4
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 16, 4096
_MARK = REPORT.pack(PROOF)
_HELLO = Struct(">q32s")
_ANSWER = Struct(">qi32sqq32s")
_LAST = Struct(">qq32s32s")
_NO_RECORD = -1


@attrs.frozen
class Last:
    """The last record of a slave's log: its offset, and its digest."""

    offset: int
    digest: bytes

    @classmethod
    def of(cls, found: tuple[int, bytes] | None) -> Last | None:
        return None if found is None else cls(found[0], sha256(found[1]).digest())


def read_secret(path: str) -> bytes:
    """The secret: the first line of the file. Raises MQError."""
    try:
        with open(path, "rb") as file:
            line = file.read(SECRET_BYTES_MAX).partition(b"\n")[0].strip()
    except OSError as error:
        raise MQError(f"haSecretFile: {path}: {error.strerror}") from None
    if len(line) < SECRET_BYTES_MIN:
        raise MQError(
            f"haSecretFile: {path}: the first line must be a secret of {SECRET_BYTES_MIN} bytes at least; "
            f"`openssl rand -hex 32 > {path}` makes one"
        )
    return line


@attrs.frozen
class LinkSecret:
    """The secret in a file, which is read for each link, so that it may be changed. `randbytes` must be unguessable."""

    path: str
    cluster: str
    broker: str
    randbytes: Callable[[int], bytes]

    @classmethod
    def of(cls, settings: BrokerSettings, randbytes: Callable[[int], bytes]) -> LinkSecret | None:
        """That of haSecretFile; None without."""
        path = settings.ha_secret_file
        return cls(path, settings.broker_cluster_name, settings.broker_name, randbytes) if path else None

    def keys(self) -> Keys:
        """Raises MQError."""
        return Keys(read_secret(self.path), f"{self.cluster}\0{self.broker}\0".encode(), self.randbytes)


@attrs.frozen(repr=False)
class Keys:
    """Makes and checks proofs for one link."""

    _secret: bytes
    _names: bytes
    _randbytes: Callable[[int], bytes]

    def nonce(self) -> bytes:
        """32 random bytes that are four negative numbers."""
        found = bytearray(self._randbytes(32))
        for at in range(0, 32, 8):
            found[at] |= 0x80
        return bytes(found)

    def proof(self, who: bytes, *parts: bytes) -> bytes:
        return hmac.digest(self._secret, b"\0".join((b"mqbroker link", who, self._names, *parts)), "sha256")

    def is_proof(self, given: bytes, who: bytes, *parts: bytes) -> bool:
        return hmac.compare_digest(given, self.proof(who, *parts))


class MasterProof:
    """The master's end.

    :param keys: None without a secret.
    :param is_needed: whether a slave that proves nothing is refused.
    """

    def __init__(self, keys: Callable[[], Keys] | None, *, is_needed: bool) -> None:
        self._make_keys, self._is_needed = keys, is_needed
        self._keys: Keys | None = None
        self._unread, self._nonces = b"", b""
        #: Whether all that comes is of the link itself.
        self.is_over = False
        #: Whether the slave has proved that it knows the secret; and its last record, if it has one.
        self.is_proven = False
        self.last: Last | None = None

    def receive(self, data: bytes, log_min: int, log_end: int) -> tuple[bytes, bytes]:
        """Parse the slave's bytes; returns the response, and the bytes behind the proof. Raises BadPeer, and MQError if
        this end's secret cannot be read."""
        self._unread += data
        if not self.is_over and len(self._unread) >= len(_MARK):
            if not self._unread.startswith(_MARK):
                if self._is_needed or self._keys is not None:
                    raise BadPeer(
                        "it does not prove that it knows the secret of this broker (haSecretFile): give it the same "
                        "file; a slave of the Java system needs its address in haWhiteRemoteAddresses here"
                    )
                self.is_over = True
            elif self._keys is None:
                if len(self._unread) >= _HELLO.size:
                    return self._answer(log_min, log_end), b""
            elif len(self._unread) >= _LAST.size:
                self._check(self._keys)
        if not self.is_over:
            return b"", b""
        data, self._unread = self._unread, b""
        return b"", data

    def _answer(self, log_min: int, log_end: int) -> bytes:
        if self._make_keys is None:
            raise BadPeer("it proves that it knows a secret (haSecretFile), and this broker has none: set it here, too")
        if len(self._unread) > _HELLO.size:
            raise BadPeer("it continued before it was answered")
        keys = self._keys = self._make_keys()
        _, theirs = _HELLO.unpack(self._unread)
        ours, self._unread = keys.nonce(), b""
        self._nonces = theirs + ours
        bounds = REPORT.pack(log_min) + REPORT.pack(log_end)
        size = _ANSWER.size - HEADER.size
        return _ANSWER.pack(PROOF, size, ours, log_min, log_end, keys.proof(b"master", self._nonces, bounds))

    def _check(self, keys: Keys) -> None:
        _, offset, digest, proof = _LAST.unpack_from(self._unread)
        signed = self._unread[len(_MARK) : _LAST.size - len(proof)]
        if not keys.is_proof(proof, b"slave", self._nonces, signed):
            raise BadPeer(
                "it knows another secret, or repeats a proof of another link: give it the same haSecretFile, "
                "brokerClusterName and brokerName as this broker"
            )
        if offset < _NO_RECORD:
            raise BadPeer(f"it says that its last record is at {offset}")
        self.last = None if offset == _NO_RECORD else Last(offset, digest)
        self._unread = self._unread[_LAST.size :]
        self.is_proven = self.is_over = True


class SlaveProof:
    """The slave's end: `hello` is sent first, and what `receive` returns after the answer.

    :param last: the last record of its log.
    """

    def __init__(self, keys: Keys, last: Last | None) -> None:
        self._keys, self._last = keys, last
        self._nonce = keys.nonce()
        self._unread = b""
        #: Where the master's log begins and ends, once that was proved.
        self.bounds: tuple[int, int] | None = None

    def hello(self) -> bytes:
        return _HELLO.pack(PROOF, self._nonce)

    def receive(self, data: bytes) -> bytes:
        """Read the answer; returns what to send then, nothing before it is whole. Raises BadPeer."""
        self._unread += data
        head = HEADER.pack(PROOF, _ANSWER.size - HEADER.size)
        if not self._unread.startswith(head[: len(self._unread)]):
            raise BadPeer(
                "the master does not prove that it knows the secret (haSecretFile): give it the same file; without one "
                "here a master that has none, as all of the Java system, is followed"
            )
        if len(self._unread) < _ANSWER.size:
            return b""
        _, _, theirs, log_min, log_end, proof = _ANSWER.unpack_from(self._unread)
        nonces = self._nonce + theirs
        if not self._keys.is_proof(proof, b"master", nonces, REPORT.pack(log_min) + REPORT.pack(log_end)):
            raise BadPeer(
                "the master knows another secret, or repeats a proof of another link: give it the same haSecretFile, "
                "brokerClusterName and brokerName as this broker"
            )
        if len(self._unread) > _ANSWER.size or not 0 <= log_min <= log_end:
            raise BadPeer("the master continued before it received the end of this log")
        self.bounds = log_min, log_end
        last = self._last or Last(_NO_RECORD, bytes(32))
        signed = REPORT.pack(last.offset) + last.digest
        return _MARK + signed + self._keys.proof(b"slave", nonces, signed)
