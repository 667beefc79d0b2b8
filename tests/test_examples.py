"""The programs in examples/, which the pages include: each runs as it stands, and does what the pages say."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemons.processes import PATIENCE_SECONDS, wait_for
from tests.samples import EXAMPLES, ROOT, Cluster, cluster

pytestmark = pytest.mark.daemons

APIS = ("asyncio", "blocking", "twisted")
TESTED = {f"{kind}_{api}.py" for kind in ("hello", "producer", "consumer", "pull") for api in APIS} | {
    "broadcasting.py",
    "broadcasting_asyncio.py",
    "broadcasting_twisted.py",
    "iterate_asyncio.py",
    "iterate_blocking.py",
    "iterate_twisted.py",
    "orderly.py",
    "poll_asyncio.py",
    "poll_blocking.py",
    "poll_twisted.py",
    "request_reply_blocking.py",
    "request_reply_twisted.py",
    "transaction_asyncio.py",
    "transaction_twisted.py",
    "worker_pool_blocking.py",
    "worker_pool_twisted.py",
}
SPARK = (
    *("spark_35", "spark_by_day", "spark_dead_letters", "spark_join", "spark_lag", "spark_messages", "spark_sessions"),
    *("spark_stream", "spark_time_range", "spark_words", "spark_write"),
)
TWISTD = str(Path(sys.executable).parent / "twistd")
SERVICES = {"service_asyncio.py": (), "service_threads.py": (), "service_twisted.py": (TWISTD, "-ny")}


@pytest.fixture
def mq_dev(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path / "samples") as running:
        yield running


def source(name: str) -> str:
    return (EXAMPLES / name).read_text()


@pytest.mark.parametrize("api", APIS)
def test_hello_prints_hello_each_time(mq_dev: Cluster, api: str) -> None:
    assert [mq_dev.run(source(f"hello_{api}.py")) for _ in range(2)] == ["hello\n"] * 2


@pytest.mark.parametrize("api", APIS)
def test_what_a_producer_sends_is_pulled_and_consumed(mq_dev: Cluster, api: str) -> None:
    assert mq_dev.run(source(f"producer_{api}.py")) == "SEND_OK in dev\n100 sent at once\n"
    pulled = [mq_dev.run(source(f"pull_{api}.py")) for _ in range(2)]
    assert pulled == ["105 messages read\n", "0 messages read\n"]
    consumer = mq_dev.start(source(f"consumer_{api}.py"), "consumer.py")
    # The one that is sent back comes again, after the others.
    wait_for(lambda: consumer.out.count("billed") == 101, "101 bills", PATIENCE_SECONDS)
    # Threads may print into each other's lines.
    assert {int(number) for number in re.findall(r"billed order (\d+)", consumer.out)} == set(range(100))
    assert "shipped" not in consumer.out
    assert consumer.stop() == 0


@pytest.mark.parametrize("api", APIS)
def test_orders_are_polled(mq_dev: Cluster, api: str) -> None:
    mq_dev.run(source("producer_blocking.py"))
    assert mq_dev.run(source(f"poll_{api}.py")) == "105 orders read, 0 are left\n"


def test_the_steps_of_an_order_come_in_their_order(mq_dev: Cluster) -> None:
    assert mq_dev.run(source("orderly.py")) == "".join(f"o-{n} created paid packed shipped\n" for n in range(5))


@pytest.mark.parametrize("name", ["broadcasting.py", "broadcasting_asyncio.py", "broadcasting_twisted.py"])
def test_each_member_gets_every_change(mq_dev: Cluster, name: str) -> None:
    assert mq_dev.run(source(name)) == "both know 10 prices\n"


@pytest.mark.parametrize("name", ["worker_pool_blocking.py", "worker_pool_twisted.py"])
def test_orders_are_worked_on_by_processes_until_sigterm(mq_dev: Cluster, name: str) -> None:
    mq_dev.run(source("producer_blocking.py"))
    pool = mq_dev.start(source(name).replace("200_000", "200"), name)
    wait_for(lambda: pool.out.count("sealed ") == 101, "101 sealed orders", PATIENCE_SECONDS)
    assert len(set(re.findall("[0-9a-f]{64}", pool.out))) == 100  # one was sent twice
    assert pool.stop() == 0
    assert "Traceback" not in pool.err + pool.out


@pytest.mark.parametrize("api", APIS)
def test_orders_are_taken_by_iteration(mq_dev: Cluster, api: str) -> None:
    mq_dev.run(source("producer_blocking.py"))
    assert mq_dev.run(source(f"iterate_{api}.py")) == "101 orders packed\n"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_writes_a_receipt_for_each_order_and_stops_on_sigterm(mq_dev: Cluster, name: str) -> None:
    mq_dev.run(source("producer_blocking.py"))
    service = mq_dev.start(source(name), name, *SERVICES[name])
    receipts = mq_dev.start(
        source("consumer_blocking.py").replace('"orders", "paid || refund"', '"receipts"'), "receipts.py"
    )
    service.wait_for_line("ready")
    wait_for(lambda: receipts.out.count("receipt for order") == 101, "101 receipts", PATIENCE_SECONDS)
    # twistd ends as the signal would have ended it, once the service has stopped.
    assert service.stop() == (-signal.SIGTERM if "twisted" in name else 0)
    assert "Traceback" not in service.err + service.out


def test_a_delayed_message_comes_when_it_is_due(mq_dev: Cluster) -> None:
    assert mq_dev.run(source("delayed.py")) == "after 0 s: sent at once\nafter 5 s: sent on level 2\n"


@pytest.mark.parametrize("name", ["request_reply.py", "request_reply_blocking.py", "request_reply_twisted.py"])
def test_a_question_gets_its_reply(mq_dev: Cluster, name: str) -> None:
    assert mq_dev.run(source(name)) == "IS ANYBODY THERE?\n"


@pytest.mark.parametrize("name", ["transaction.py", "transaction_asyncio.py", "transaction_twisted.py"])
def test_a_message_is_sent_if_its_transaction_commits(mq_dev: Cluster, name: str) -> None:
    assert mq_dev.run(source(name)) == "a book COMMIT\na car ROLLBACK\n"


def test_each_program_is_tested() -> None:
    # Others are run with their pages: of the tutorial, the sender to restart under, the table of messages to send.
    others = {"test_receipts.py", "delayed.py", "outbox.py", "request_reply.py", "send_steadily.py", "transaction.py"}
    others |= {"service_fastapi.py", "worker_pool.py", "topic_names.py"}
    # Spark's programs share a session in tests/spark/test_programs.py; spark_35.py is in test_versions.py.
    others |= {f"{name}.py" for name in SPARK}
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED | set(SERVICES) | others


def test_each_program_is_on_a_page() -> None:
    pages = "".join(path.read_text() for path in ROOT.glob("docs/**/*.rst"))
    assert [path.name for path in EXAMPLES.glob("*.py") if f"examples/{path.name}\n" not in pages] == []


def test_the_readme_shows_one_of_them() -> None:
    lines = source("hello_asyncio.py").rstrip("\n").split("\n")
    shown = "\n".join(f"    {line}".rstrip() for line in lines)
    assert f".. code-block:: python\n\n{shown}\n\n" in (ROOT / "README.rst").read_text()


def test_the_tests_of_a_service_pass(tmp_path: Path) -> None:
    (tmp_path / "test_receipts.py").write_text(source("test_receipts.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_receipts.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert re.search(r"2 passed", done.stdout), done.stdout + done.stderr
