"""The pages of the tutorial, and how-to pages for programs: followed as they stand, with what they print."""

import importlib.util
import re
import shutil
import textwrap
from pathlib import Path

import pytest

from mqbroker_demo.spark_process import what_is_missing
from tests.daemons.processes import SOURCE
from tests.sessions import Terminal, commands, follow, is_like, need_namespaces, reader_environment, steps
from tests.spark.session import short_lived_jvm

ROOT = Path(__file__).parent.parent.parent
TUTORIAL = ROOT / "docs" / "tutorial"
HOW_TO = (
    "delay-messages.rst",
    "request-reply.rst",
    "service-asyncio.rst",
    "service-threads.rst",
    "service-twisted.rst",
    "transactions.rst",
    "web-service.rst",
    "worker-pool.rst",
)


@pytest.mark.daemons
def test_the_first_page(tmp_path: Path) -> None:
    assert follow([TUTORIAL / "start.rst"], tmp_path / "clone", reader_environment(tmp_path, PYTHONPATH=SOURCE)) >= 7


@pytest.mark.daemons
def test_the_page_with_two_brokers(tmp_path: Path) -> None:
    pages, environment = [TUTORIAL / "cluster.rst"], reader_environment(tmp_path, PYTHONPATH=SOURCE)
    if what_is_missing() is None:
        pages.append(TUTORIAL / "spark.rst")
        environment["SPARK_SUBMIT_OPTS"] = short_lived_jvm()
    assert follow(pages, tmp_path / "clone", environment) >= 18


@pytest.mark.daemons
@pytest.mark.parametrize("page", HOW_TO)
def test_a_how_to_for_programs(tmp_path: Path, page: str) -> None:
    if page == "web-service.rst" and None in map(importlib.util.find_spec, ("fastapi", "uvicorn")):
        pytest.skip("fastapi and uvicorn are not installed")
    typed = follow([ROOT / "docs" / "howto" / page], tmp_path / "work", reader_environment(tmp_path, PYTHONPATH=SOURCE))
    assert typed == {"delay-messages.rst": 2, "request-reply.rst": 2, "worker-pool.rst": 3}.get(page, 4)


def test_every_page_of_the_tutorial_is_followed() -> None:
    pages = {path.stem: list(steps(path)) for path in TUTORIAL.glob("*.rst")}
    assert pages.keys() == {"index", "start", "cluster", "spark"}
    shown = sum(path.read_text().count(".. code-block:: ") for path in TUTORIAL.glob("*.rst"))
    included = sum(path.read_text().count(".. literalinclude:: ") for path in TUTORIAL.glob("*.rst"))
    # Two are left out: they install what the tests' environment has.
    assert sum(map(len, pages.values())) == shown + included - 2


def test_output_is_compared_but_for_what_differs_from_run_to_run() -> None:
    [(command, expected)] = commands("$ mq pub t x\nsent to t: broker dev, queue 2, offset 0  " + "7F" * 16)
    assert command == "mq pub t x"
    assert is_like(["sent to t: broker dev, queue 0, offset 17  " + "A0" * 16, ""], expected)
    assert not is_like(["sent to u: broker dev, queue 0, offset 17  " + "A0" * 16], expected)
    assert not is_like([], expected)
    assert is_like(["one", "two", "three"], ["one", "...", "three"])
    assert not is_like(["one", "two"], ["one", "...", "three"])


@pytest.mark.daemons
def test_the_readme_runs_brokers_for_real(tmp_path: Path) -> None:
    section = (ROOT / "README.rst").read_text().partition("\nRun it for real\n")[2]
    found = re.search(r"::\n\n((?: {4}.*\n)+)", section)
    assert found is not None
    need_namespaces()
    for name in ("namesrv.conf", "broker.conf"):
        shutil.copy(ROOT / "conf" / name, tmp_path)
    shell = Terminal(tmp_path, reader_environment(tmp_path, PYTHONPATH=SOURCE))
    try:
        printed = ""
        for line in textwrap.dedent(found[1]).splitlines():
            code, lines = shell.run(line)
            assert code == 0, (line, lines)
            printed += "\n".join(lines) + "\n"
            if line.endswith("&"):
                shell.wait_for(re.compile("boot success"))
        assert shell.run("wait")[0] == 0
        assert "the settings are good" in printed
        assert re.search(r"broker-a +0 +127.0.0.1:10911", printed)
    finally:
        shell.close()
