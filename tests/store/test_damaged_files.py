"""Stores whose files were damaged while nobody had them open: flipped bits, zeros, pages and files elsewhere or gone.

A store opens, or says in one line which file is wrong, where, and why. What it serves is what was stored, and where the
log still has a message it is served; what it has not is counted as damage. The places come from a seed, printed;
MQBROKER_DAMAGE_SEED chooses another.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import attrs
import pytest

from mqbroker.errors import StoreDamaged
from mqbroker.store import MessageStore
from mqbroker.wire.record import Record, decode_records
from tests.store.harness import Bench, make_bench, message, now, stop, turns

SEED = int(os.environ.get("MQBROKER_DAMAGE_SEED", "497"))
SEGMENT = 131072
PAGE = 4096
QUEUES = 3
TRIES = 3
Mutation = Callable[[Path, Random], None]


@attrs.frozen
class Original:
    """A store directory as it was left, and all that was in it: (queue, offset) -> record, and record -> its bytes."""

    root: Path
    records: dict[tuple[int, int], Record]
    data: dict[int, bytes]
    durable: int


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Original]]:
    """One store stopped in order, and one killed some messages after its last checkpoint."""
    folder = tmp_path_factory.mktemp("originals")
    bench = make_bench(folder / "stopped")
    rng = Random(SEED)
    store = bench.open()
    store.start()
    fill(store, rng, range(400))
    turns(bench.clock, 12)
    durable = store.flushed
    assert durable == store.log_end
    fill(store, rng, range(400, 430))
    store.dispatch_now()
    killed = bench.image("killed")
    stop(store)
    made = {}
    for name, root, durable_end in (("stopped", bench.root, 1 << 62), ("killed", killed.root, durable)):
        again = Bench(root, bench.clock, bench.disk, bench.worker, {}).image(f"{name}-read")
        opened = again.open()
        records = dict(walk(opened))
        data = {
            record.physical_offset: bytes(now(opened).record(record.physical_offset) or b"")
            for record in records.values()
        }
        assert len(records) == 430
        again.close()
        made[name] = Original(root, records, data, durable_end)
    yield made
    bench.close()


def fill(store: MessageStore, rng: Random, numbers: range) -> None:
    for n in numbers:
        body = b"%d-" % n + rng.randbytes(rng.randrange(3000))
        key = f"k{n}".encode()
        store.append([message(queue_id=n % QUEUES, body=body, properties=b"UNIQ_KEY\x01" + key + b"\x02TAGS\x01TagA")])


def walk(store: MessageStore) -> Iterator[tuple[tuple[int, int], Record]]:
    """All that is served: for each place asked for, in order, what came."""
    for queue in range(QUEUES):
        offset = store.min_offset("T", queue)
        while offset < store.max_offset("T", queue):
            got = now(store).get("T", queue, offset, 32)
            for piece in got.pieces:
                for record in decode_records(bytes(piece)):
                    assert record.queue_offset >= offset
                    yield (queue, record.queue_offset), record
            assert got.next_offset > offset
            offset = got.next_offset


def content(record: Record) -> tuple[str, int, int, bytes]:
    """What no damage may change unnoticed. No CRC covers the rest: flags, times, hosts and properties."""
    return record.topic, record.queue_id, record.physical_offset, record.body


def contents(records: dict[tuple[int, int], Record]) -> dict[tuple[int, int], tuple[str, int, int, bytes]]:
    return {place: content(record) for place, record in records.items()}


# Mutations


def log_files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def full_segments(root: Path) -> list[Path]:
    """Segments but the last two, of which one may be prepared ahead."""
    return log_files(root)[:-2]


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, rng: Random, at: int) -> None:
    with path.open("rb") as file:
        file.seek(at)
        (byte,) = file.read(1)
    patch(path, at, bytes([byte ^ 1 << rng.randrange(8)]))


def log_bit(root: Path, rng: Random) -> None:
    path = rng.choice(full_segments(root))
    flip(path, rng, rng.randrange(SEGMENT - PAGE))


def log_bits(root: Path, rng: Random) -> None:
    for _ in range(8):
        log_bit(root, rng)


def log_zero_page(root: Path, rng: Random) -> None:
    patch(rng.choice(full_segments(root)), rng.randrange(SEGMENT // PAGE) * PAGE, bytes(PAGE))


def log_noise(root: Path, rng: Random) -> None:
    patch(rng.choice(full_segments(root)), rng.randrange(SEGMENT // 512) * 512, rng.randbytes(512))


def log_page_elsewhere(root: Path, rng: Random) -> None:
    data = rng.choice(full_segments(root)).read_bytes()
    at = rng.randrange(SEGMENT // PAGE) * PAGE
    patch(rng.choice(full_segments(root)), rng.randrange(SEGMENT // PAGE) * PAGE, data[at : at + PAGE])


def log_exchanged(root: Path, rng: Random) -> None:
    one, other = rng.sample(full_segments(root), 2)
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def log_zero_segment(root: Path, rng: Random) -> None:
    rng.choice(full_segments(root)).write_bytes(bytes(SEGMENT))


def log_cut(root: Path, rng: Random) -> None:
    os.truncate(rng.choice(full_segments(root)), rng.randrange(SEGMENT))


def log_missing(root: Path, rng: Random) -> None:
    rng.choice(full_segments(root)[1:]).unlink()


def log_first_missing(root: Path, rng: Random) -> None:
    full_segments(root)[0].unlink()


def log_last_missing(root: Path, rng: Random) -> None:
    for path in log_files(root)[-rng.randint(2, 3) :]:
        path.unlink()


def queue_files(root: Path) -> list[Path]:
    return sorted((root / "consumequeue").glob("*/*/*"))


def queue_bit(root: Path, rng: Random) -> None:
    path = rng.choice(queue_files(root))
    flip(path, rng, rng.randrange(path.stat().st_size))


def queue_zeros(root: Path, rng: Random) -> None:
    path = rng.choice(queue_files(root))
    at = rng.randrange(path.stat().st_size // 512) * 512
    patch(path, at, bytes(512)[: path.stat().st_size - at])


def queue_noise(root: Path, rng: Random) -> None:
    path = rng.choice(queue_files(root))
    patch(path, rng.randrange(path.stat().st_size - 200), rng.randbytes(200))


def queues_exchanged(root: Path, rng: Random) -> None:
    one, other = (root / "consumequeue" / "T" / str(n) for n in rng.sample(range(QUEUES), 2))
    one.rename(root / "between")
    other.rename(one)
    (root / "between").rename(other)


def queue_cut(root: Path, rng: Random) -> None:
    path = rng.choice(queue_files(root))
    os.truncate(path, rng.randrange(1, path.stat().st_size))


def queue_missing(root: Path, rng: Random) -> None:
    shutil.rmtree(root / "consumequeue" / "T" / str(rng.randrange(QUEUES)))


def queue_last_file_missing(root: Path, rng: Random) -> None:
    max((root / "consumequeue" / "T" / str(rng.randrange(QUEUES))).iterdir()).unlink()


def queue_first_file_missing(root: Path, rng: Random) -> None:
    min((root / "consumequeue" / "T" / str(rng.randrange(QUEUES))).iterdir()).unlink()


def queues_missing(root: Path, rng: Random) -> None:
    shutil.rmtree(root / "consumequeue")


def index_noise(root: Path, rng: Random) -> None:
    for path in (root / "index").iterdir():
        patch(path, rng.randrange(path.stat().st_size - 500), rng.randbytes(500))


def index_zeros(root: Path, rng: Random) -> None:
    path = rng.choice(sorted((root / "index").iterdir()))
    patch(path, rng.choice([0, 40, 440, 1000]), bytes(512))


def index_cut(root: Path, rng: Random) -> None:
    path = rng.choice(sorted((root / "index").iterdir()))
    os.truncate(path, rng.randrange(path.stat().st_size))


def index_missing(root: Path, rng: Random) -> None:
    rng.choice(sorted((root / "index").iterdir())).unlink()


def checkpoint_noise(root: Path, rng: Random) -> None:
    patch(root / "checkpoint", rng.randrange(60), rng.randbytes(8))


def checkpoint_cut(root: Path, rng: Random) -> None:
    os.truncate(root / "checkpoint", rng.randrange(60))


def checkpoint_missing(root: Path, rng: Random) -> None:
    (root / "checkpoint").unlink()


LOG = [log_bit, log_bits, log_zero_page, log_noise, log_page_elsewhere, log_exchanged, log_zero_segment]
LOG_FILES = [log_cut, log_missing, log_first_missing, log_last_missing]
QUEUE = [queue_bit, queue_zeros, queue_noise, queues_exchanged, queue_cut, queue_missing, queue_last_file_missing,
         queue_first_file_missing, queues_missing]  # fmt: skip
OTHER = [index_noise, index_zeros, index_cut, index_missing, checkpoint_noise, checkpoint_cut, checkpoint_missing]
HOW = ["stopped", "killed"]


def mutated(original: Original, tmp_path: Path, mutate: Mutation, n: int) -> Bench:
    """A copy of a store, damaged."""
    rng = Random(f"{SEED} {mutate.__name__} {n}")
    print(f"seed {SEED}: {mutate.__name__} {n}")
    root = tmp_path / "store"
    shutil.copytree(original.root, root)
    mutate(root, rng)
    bench = make_bench(root)
    bench.clock.advance(100)
    bench.disk.boot = b"first boot"
    return bench


def intact(original: Original, root: Path) -> dict[tuple[int, int], Record]:
    """What the damaged log still has, byte for byte, of what its promise covers."""
    log = {int(path.name): path.read_bytes() for path in log_files(root)}
    found = {}
    for place, record in original.records.items():
        at = record.physical_offset
        data = original.data[at]
        if log.get(at - at % SEGMENT, b"")[at % SEGMENT :][: len(data)] == data and at + len(data) <= original.durable:
            found[place] = record
    return found


def check_named(error: StoreDamaged, root: Path) -> None:
    """One line: the file, where in it, and why."""
    assert error.path.startswith(str(root))
    assert re.fullmatch(rf"{re.escape(error.path)} is damaged at byte \d+: .{{10,}}", str(error))


def check_served(store: MessageStore, original: Original) -> dict[tuple[int, int], Record]:
    """Nothing is served but what was stored at that place, and each key finds but its message."""
    served = dict(walk(store))
    assert {place: content(record) for place, record in served.items()}.items() <= contents(original.records).items()
    for n in range(430):
        for data in now(store).query("T", f"k{n}", 9, 0, 1 << 62):
            (record,) = decode_records(data)
            assert record.body.startswith(b"%d-" % n)
    return served


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("n", range(TRIES))
@pytest.mark.parametrize("mutate", LOG)
def test_damage_in_the_log(originals: dict[str, Original], tmp_path: Path, mutate: Mutation, n: int, how: str) -> None:
    original = originals[how]
    bench = mutated(original, tmp_path, mutate, n)
    rest = intact(original, bench.root)
    store = bench.open()
    served = check_served(store, original)
    assert rest.items() <= served.items()
    promised = {place for place, record in original.records.items() if record.physical_offset < original.durable}
    assert promised <= set(served) or store.stats.corrupt_ranges + store.stats.rotten_entries > 0
    bench.close()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("n", range(TRIES))
@pytest.mark.parametrize("mutate", LOG_FILES)
def test_segments_cut_or_missing(
    originals: dict[str, Original], tmp_path: Path, mutate: Mutation, n: int, how: str
) -> None:
    original = originals[how]
    bench = mutated(original, tmp_path, mutate, n)
    before = {path: path.read_bytes() for path in log_files(bench.root)}
    try:
        store = bench.open()
    except StoreDamaged as error:
        check_named(error, bench.root)
        assert {path: path.read_bytes() for path in log_files(bench.root)} == before
        return
    served = check_served(store, original)
    assert intact(original, bench.root).items() <= served.items()
    assert store.stats.corrupt_ranges > 0 or mutate is log_first_missing
    bench.close()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("n", range(TRIES))
@pytest.mark.parametrize("mutate", QUEUE)
def test_damage_in_consume_queues(
    originals: dict[str, Original], tmp_path: Path, mutate: Mutation, n: int, how: str
) -> None:
    """Nothing wrong is served; and without consume queues they are built anew, all of them."""
    original = originals[how]
    bench = mutated(original, tmp_path, mutate, n)
    try:
        store = bench.open()
    except StoreDamaged as error:
        check_named(error, bench.root)
    else:
        check_served(store, original)
        bench.close()
    shutil.rmtree(bench.root / "consumequeue", ignore_errors=True)
    again = make_bench(bench.root)
    again.clock.advance(200)
    assert check_served(again.open(), original) == original.records
    again.close()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("n", range(TRIES))
@pytest.mark.parametrize("mutate", OTHER)
def test_damage_in_index_or_checkpoint(
    originals: dict[str, Original], tmp_path: Path, mutate: Mutation, n: int, how: str
) -> None:
    original = originals[how]
    bench = mutated(original, tmp_path, mutate, n)
    store = bench.open()
    store.start()
    turns(bench.clock, 2)
    assert check_served(store, original) == original.records
    bench.close()
