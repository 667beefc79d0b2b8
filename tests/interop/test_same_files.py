"""Consume queues and index that each kind of broker makes of one log: equal byte for byte."""

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from tests.interop.fleet import Broker, Fleet, Kind, Namesrv
from tests.interop.raw import Line
from tests.interop.sample_store import Sample, wait_all


def files_below(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("sample", "builder"), [(Sample.OURS, "java"), (Sample.OURS_FULL, "java"), (Sample.JAVA_FULL, "ours")]
)
def test_what_is_deleted_is_built_anew_by_the_other(
    shared_fleet: Fleet, our_namesrv: Namesrv, sample_stores: dict[Sample, Broker], sample: Sample, builder: Kind
) -> None:
    written = sample_stores[sample]
    written.process.stop()
    store = shared_fleet.scratch / f"{sample.value}-by-{builder}"
    shutil.copytree(written.store, store)
    built = ["consumequeue", "consumequeue_ext"] if sample.is_full else ["consumequeue"]
    for name in [*built, "index"]:
        shutil.rmtree(store / name)
    broker = shared_fleet.broker(builder, our_namesrv, store, brokerName=written.name, **sample.settings)
    with closing(Line(broker.addr)) as line:
        wait_all(line, sample)
    broker.process.stop() if builder == "ours" else broker.process.kill()

    for name in built:
        files = files_below(written.store / name)
        assert len(files) >= 12
        assert files_below(store / name) == files
    # Index files are named by the time they are made at.
    before, after = (sorted(files_below(path / "index").items()) for path in (written.store, store))
    assert len(before) > 2
    assert [content for _, content in after] == [content for _, content in before]
