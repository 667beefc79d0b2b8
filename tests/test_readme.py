"""The README: short, with the figures of the page on performance, and links that work where it is shown."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.picture import PICTURE, ROWS, WIDTH, draw

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.rst").read_text()
FIGURE = re.compile(r"\d[\d,]*,\d{3}")


def performance() -> str:
    return (ROOT / "docs" / "explanation" / "performance.rst").read_text()


def test_it_is_short_and_has_one_test_command() -> None:
    assert len(README.splitlines()) < 120
    # As .ci/run finds it.
    assert re.findall(r"^    (pip install .*tox.*)$", README, re.MULTILINE) == ["pip install tox && tox"]


def test_each_figure_is_on_the_page_on_performance() -> None:
    figures = FIGURE.findall(README) + FIGURE.findall((ROOT / "docs" / "index.rst").read_text())
    assert len(figures) >= 24
    shown = [*figures, *(figure for row in ROWS for figure in (row.ours, row.java))]
    measured = set(re.findall(r"\d[\d,]*", performance()))
    assert [figure for figure in shown if figure not in measured] == []


def test_the_ratios_are_those_of_the_figures() -> None:
    rows = re.findall(rf"^\S.*?  ({FIGURE.pattern}) +({FIGURE.pattern}) +([\d.]+)$", README, re.MULTILINE)
    assert len(rows) >= 6
    for ours, java, ratio in rows:
        assert abs(int(ours.replace(",", "")) / int(java.replace(",", "")) - float(ratio)) < 0.0051, ours


def test_the_picture_is_the_one_that_is_drawn_now() -> None:
    assert PICTURE.read_text() == draw(), "run `python -m bench.picture`"
    assert WIDTH <= 390, "its words must be readable on a phone, without being made smaller"


def test_it_says_in_three_lines_each_which_system_is_better_for_what() -> None:
    reasons = re.findall(r"^- \*\*Rather than (.+?)\*\* (.+(?:\n  .+){0,2})\n(?=- |\n)", README, re.MULTILINE)
    assert [system for system, _ in reasons] == ["Apache's RocketMQ", "Kafka", "NATS"]
    assert [system for system, reason in reasons if " is better " not in " ".join(reason.split())] == []


def test_what_is_there_beside_java_is_a_table_of_present_partly_and_absent() -> None:
    table = README.partition("What is there\n")[2].partition("\nDocumentation and tests\n")[0]
    assert re.findall(r"^([a-z]\S*(?: \S+)*)  ", table, re.MULTILINE) == ["present", "partly", "absent", "beyond 4.9"]


def test_what_it_refers_to_exists() -> None:
    paths = re.findall(r"\.\. image:: (\S+)|<([^>:]+)>`__", README)
    found = [one or other for one, other in paths]
    assert len(found) >= 5
    assert [path for path in found if not (ROOT / path).is_file()] == []


def description(**variables: str) -> str:
    """The text for a package index, built with some variables in the environment."""
    pytest.importorskip("setuptools", reason="an environment of Python 3.12 or later has none")
    command = [sys.executable, "setup.py", "-q", "--long-description"]
    environ = {key: value for key, value in os.environ.items() if key != "MQBROKER_LINKS"} | variables
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True).stdout


def test_the_description_of_the_package_has_no_link_to_a_file_of_the_repository() -> None:
    described = description()
    assert "image::" not in described
    assert ">`__" not in described
    assert "Tutorial, how-to guides," in described
    assert "read\nCONTRIBUTING.rst." in described
    assert described.count("\n") > 90


def test_the_links_of_the_description_lead_to_the_repository_where_its_address_is_known() -> None:
    described = description(MQBROKER_LINKS="https://code.example/mqbroker/blob/main/")
    paths = re.findall(r"<([^>:]+)>`__", README)
    assert len(paths) >= 5
    found = re.findall(r"<([^>]+)>`__", described)
    assert found == [f"https://code.example/mqbroker/blob/main/{path}" for path in paths]
