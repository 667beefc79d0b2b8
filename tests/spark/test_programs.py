"""The programs of examples/ on Spark, as they stand, in one session."""

import json
import subprocess
import sys
from collections.abc import Iterator
from threading import Timer

import attrs
import pytest

pytest.importorskip("pyspark", minversion="4.0")
pytest.importorskip("pyarrow")

from mqbroker.spark.java import JavaMissing, find_java
from tests.daemons.processes import PATIENCE_SECONDS
from tests.samples import EXAMPLES, Cluster, cluster

pytestmark = [pytest.mark.spark, pytest.mark.daemons]


@attrs.define
class Runner:
    """Programs run one after the other in a session, on `cluster`, in the directory of that."""

    cluster: Cluster
    _process: "subprocess.Popen[str]"

    def run(self, name: str, **changes: str) -> str:
        """What a program prints; it must end by itself. `changes` replace words of it, such as the name of a topic."""
        text = (EXAMPLES / f"{name}.py").read_text()
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        limit = Timer(PATIENCE_SECONDS, self._process.kill)
        limit.start()
        try:
            stdin.write(f"{self.cluster.write(f'{name}.py', text)}\n")
            stdin.flush()
            printed, error = json.loads(stdout.readline())
        finally:
            limit.cancel()
        assert error is None, error
        assert isinstance(printed, str)
        return printed


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    try:
        find_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("programs")
    scratch = folder / "scratch"
    scratch.mkdir()
    with cluster(folder) as running, open(folder / "errors", "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.spark.program_runner", str(scratch)],
            cwd=folder,
            env=running.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            runner = Runner(running, process)
            assert runner.run("spark_messages") == "sent\n"
            yield runner
        finally:
            process.kill()
            process.communicate()


def test_a_topic_is_read_into_files(runner: Runner) -> None:
    runner.run("producer_blocking")
    assert runner.run("spark_stream") == "105 orders\n"


def test_the_orders_of_each_day_are_kept_once(runner: Runner) -> None:
    # A column is added to the query before it is started again.
    for count, more in ((105, ""), (210, '"bornHost",')):
        runner.run("producer_blocking", orders="daily")
        printed = runner.run("spark_by_day", **{'topic="orders"': 'topic="daily"', '"tags",': f'"tags",{more}'})
        # The test may run at midnight.
        assert printed.startswith(f"{count} orders of ")


def test_each_order_gets_a_receipt_once(runner: Runner) -> None:
    runner.run("producer_blocking", orders="billed")
    changes = {'topic="orders"': 'topic="billed"'}
    assert [runner.run("spark_write", **changes) for _ in range(2)] == ["105 receipts\n"] * 2


def test_words_are_counted_into_a_topic_once(runner: Runner) -> None:
    for _ in range(2):
        lines = runner.run("spark_words").splitlines()
        assert sorted(lines) == ["be 3", "do 1", "is 1", "not 1", "or 1", "to 4"]


def test_clicks_become_sessions(runner: Runner) -> None:
    # That of carl may get more clicks.
    assert [runner.run("spark_sessions") for _ in range(2)] == ["ada 2\nbob 1\nada 1\n"] * 2


def test_bills_are_joined_with_their_payments(runner: Runner) -> None:
    assert [runner.run("spark_join") for _ in range(2)] == ["1 21\n3 23\n"] * 2


def test_dead_letters_are_counted_by_reason(runner: Runner) -> None:
    printed = runner.run("spark_dead_letters")
    assert printed == "1 of parcels because of: nobody at home\n2 of parcels because of: no such address\n"


def test_a_time_range_is_read_again(runner: Runner) -> None:
    assert [runner.run("spark_time_range") for _ in range(2)] == ["5 clicks again\n"] * 2


def test_the_lag_of_a_stream_is_shown(runner: Runner) -> None:
    shown = runner.run("spark_lag", **{"port=9464": "port=0"}).splitlines()
    left = {line.split(":")[0]: line.split(": ")[1] for line in shown}
    assert len(left) == 4
    assert set(left.values()) == {"0 to read"}
    assert len(shown) >= 8
    assert any(not line.endswith(" 0 to read") for line in shown)
