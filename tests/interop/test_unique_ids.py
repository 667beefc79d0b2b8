"""Unique ids of messages: Java's client reads in random ones of ours what they were made of."""

import random
import socket
import time
from pathlib import Path

from mqbroker.wire.ids import UniqIdSource
from tests.interop.peers import PeerHost

IDS = 5000
DAYS = 27  # Java takes the month for the last one in which the id's time has come


def an_address(rng: random.Random) -> str:
    family, size = rng.choice([(socket.AF_INET, 4), (socket.AF_INET, 4), (socket.AF_INET6, 16)])
    return socket.inet_ntop(family, rng.randbytes(size))


def as_java(address: str) -> str:
    """As Java writes it: it shortens no IPv6 address."""
    if ":" not in address:
        return address
    text = socket.inet_pton(socket.AF_INET6, address).hex()
    return ":".join(text[at : at + 4] for at in range(0, 32, 4))


def test_java_reads_in_random_ids_what_they_were_made_of(host: PeerHost, tmp_path: Path) -> None:
    rng, began = random.Random(7), int(time.time() * 1000) - 60_000
    ids, wanted = [], []
    for _ in range(IDS):
        address, pid, at_ms = an_address(rng), rng.randrange(2**22), began - rng.randrange(DAYS * 86_400_000)
        source = UniqIdSource(address, pid, rng.getrandbits(32), lambda at_ms=at_ms: at_ms / 1000)  # type: ignore[misc]
        ids.append(source())
        wanted.append(f"{as_java(address)} {pid & 0xFFFF} {int(at_ms / 1000 * 1000)}")
    given, results = tmp_path / "ids", tmp_path / "results"
    given.write_text("".join(f"{each}\n" for each in ids))
    assert host.start("ids", ["ids", "--ids", str(given), "--results", str(results)]).wait() == 0
    assert results.read_text().splitlines() == wanted
