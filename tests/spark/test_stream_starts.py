"""The stream reader with what Spark has kept of its offsets: nothing before the first batch, or something else."""

from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from mqbroker.spark import api
from mqbroker.spark.errors import BadCheckpoint
from tests.spark.fake_log import FakeLog
from tests.spark.test_stream_reader import A0, Engine, Make, OldEngine, log, make, rows  # noqa: F401 - fixtures


@pytest.mark.parametrize("die_before", ["read", "commit"])
@pytest.mark.parametrize("tells_start", [True, False])
def test_messages_that_come_in_before_the_first_batch_are_not_missed(
    log: FakeLog,  # noqa: F811
    make: Make,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tells_start: bool,
    die_before: str,
) -> None:
    monkeypatch.setattr(api, "TELLS_START", tells_start)
    engine, reader = Engine() if tells_start else OldEngine(), make()
    ask = reader.latestOffset

    def ask_late(*given: Any) -> dict[str, Any]:
        reader.initialOffset()
        log.add(A0, 3)
        return ask(*given)

    monkeypatch.setattr(reader, "latestOffset", ask_late)
    engine.run(reader, die_before=die_before)
    log.add(A0, 5)
    engine.run(restarted := make())
    engine.drain(restarted)
    assert engine.rows() == rows(range(10, 18), range(0))


def test_an_offset_that_is_none_of_this_source_ends_a_query_with_the_reason(make: Make) -> None:  # noqa: F811
    # As Spark's own source for another system writes it.
    reader, offset = make(), {"orders": {"0": 23}}
    why = "broker '0' of topic 'orders' is not an object but 23; use a new checkpointLocation"
    for ask in (lambda: reader.latestOffset(offset), lambda: reader.partitions(offset, offset)):
        with pytest.raises(BadCheckpoint, match=f"^checkpoint of the query: an offset is not of .*damaged: {why}"):
            ask()
    with pytest.raises(BadCheckpoint, match=why):
        reader.commit(offset)
