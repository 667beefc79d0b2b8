"""Any history of appends, turns, flushes, stops and kills: what was appended is there, once and in order."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from mqbroker.store import MessageStore
from mqbroker.wire.record import decode_records
from tests.store.harness import Bench, make_bench, message, now, stop, tree

# A batch of messages, each a queue and the length of its body.
batches = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 10, 500, 1500, 3900])), min_size=1, max_size=12)
steps = st.lists(
    st.one_of(
        batches,
        st.sampled_from(["turn", "time", "stop", "kill", "power"]),
    ),
    max_size=14,
)
SEGMENT = 4096 + 512


class Model:
    """A store beside what must be in it."""

    def __init__(self, root: Path) -> None:
        self.bench: Bench = make_bench(root, mapped_file_size_commit_log=SEGMENT, max_index_num=30)
        self.store: MessageStore = self.bench.open()
        self.store.start()
        self.queues: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        self.written = 0
        self.images = 0

    def append(self, batch: list[tuple[int, int]]) -> None:
        messages = []
        expected = []
        for queue_id, size in batch:
            self.written += 1
            body = b"%d:" % self.written + b"x" * size
            properties = b"UNIQ_KEY\x01u%d\x02KEYS\x01k%d all" % (self.written, self.written % 5)
            messages.append(message(queue_id=queue_id, body=body, properties=properties))
            expected.append(len(self.queues[queue_id]))
            self.queues[queue_id].append(body)
        assert [row[1] for row in self.store.append(messages)] == expected

    def do(self, what: str) -> None:
        if what == "turn":
            self.bench.clock.advance(0)
        elif what == "time":
            self.bench.clock.pump([0.5] * 5)
        elif what == "stop":
            stop(self.store)
            self.reopen(self.bench)
        else:
            self.images += 1
            killed = self.bench.image(f"image{self.images}")
            if what == "power":  # all pages were lucky, but that cannot be known
                killed.disk.boot = b"boot %d" % self.images
            stop(self.store)
            self.reopen(killed)

    def reopen(self, bench: Bench) -> None:
        self.bench = bench
        self.store = bench.open()
        self.store.start()
        self.check()

    def check(self) -> None:
        self.bench.clock.pump([0.01] * 3)
        for queue_id, bodies in self.queues.items():
            assert self.store.max_offset("T", queue_id) == len(bodies)
            found: list[bytes] = []
            while len(found) < len(bodies):
                result = now(self.store).get("T", queue_id, len(found), 32)
                for piece in result.pieces:
                    found += [record.body for record in decode_records(piece)]
                assert result.next_offset == len(found)
            assert found == bodies
        assert len(now(self.store).query("T", "all", 10_000, 0, 2**62)) == self.written
        assert not self.store.corrupt_ranges

    def compare_with_a_rebuild(self) -> None:
        stop(self.store)
        rebuilt = self.bench.image("rebuilt")
        for part in ("consumequeue", "index"):
            rebuilt.disk.remove_tree(str(rebuilt.root / part))
        store = rebuilt.open()
        store.start()
        rebuilt.clock.advance(0)
        stop(store)
        assert tree(rebuilt.root / "consumequeue") == tree(self.bench.root / "consumequeue")
        ours, theirs = tree(self.bench.root / "index"), tree(rebuilt.root / "index")
        assert list(ours.values()) == list(theirs.values())


@given(steps)
@settings(derandomize=True, database=None, deadline=None, max_examples=60)
def test_any_history(history: list[str | list[tuple[int, int]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Path(directory) / "store")
        for step in history:
            if isinstance(step, str):
                model.do(step)
            else:
                model.append(step)
        model.check()
        model.compare_with_a_rebuild()
