"""Consume queues and index that each kind of broker makes of one log: equal byte for byte."""

import shutil
from pathlib import Path

import pytest

from tests.interop.fleet import Broker, Fleet, Kind, Namesrv
from tests.interop.raw import Line
from tests.interop.sample_store import SETTINGS, wait_all
from tests.interop.test_store_both_ways import WAYS


def files_below(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("writer", "builder"), WAYS)
def test_what_is_deleted_is_built_anew_by_the_other(
    shared_fleet: Fleet, our_namesrv: Namesrv, sample_stores: dict[Kind, Broker], writer: Kind, builder: Kind
) -> None:
    sample = sample_stores[writer]
    sample.process.stop()
    store = shared_fleet.scratch / f"rebuilt-by-{builder}"
    shutil.copytree(sample.store, store)
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")
    broker = shared_fleet.broker(builder, our_namesrv, store, brokerName=sample.name, **SETTINGS)
    line = Line(broker.addr)
    wait_all(line)
    line.close()
    broker.process.stop() if builder == "ours" else broker.process.kill()

    queues = files_below(sample.store / "consumequeue")
    assert len(queues) == 12
    assert files_below(store / "consumequeue") == queues
    assert len(files_below(store / "index")) > 2
    # Index files are named by the time they are made at.
    before, after = (sorted(files_below(path / "index").items()) for path in (sample.store, store))
    assert [content for _, content in after] == [content for _, content in before]
