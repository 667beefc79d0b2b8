"""Data recorded from the Java 4.9.7 system, and hypothesis made repeatable."""

from __future__ import annotations

import base64
import gzip
import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

DATA = Path(__file__).parent.parent / "data"

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


class GoldenFrame(NamedTuple):
    """One frame as it crossed the wire; `side` is "request" or "response", `code` that of the request."""

    name: str
    code: int
    side: str
    data: bytes


def load_frames() -> list[GoldenFrame]:
    with gzip.open(DATA / "frames-4.9.7.jsonl.gz", "rt") as lines:
        pairs = [json.loads(line) for line in lines]
    return [
        GoldenFrame(pair["name"], pair["code"], side, base64.b64decode(pair[side]))
        for pair in pairs
        for side in ("request", "response")
        if pair[side] is not None
    ]


FRAMES = load_frames()


@pytest.fixture
def golden_frame() -> GoldenFrame:
    """Each recorded frame: the test is called with one after the other."""
    return FRAMES[0]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """One test of all frames: thousands of tests take longer than what they do."""
    if "golden_frame" not in pyfuncitem.funcargs:
        return None
    for number, frame in enumerate(FRAMES):
        try:
            pyfuncitem.obj(golden_frame=frame)
        except BaseException as error:
            error.add_note(f"frame {number}: {frame.name}, {frame.side}")
            raise
    return True


@pytest.fixture(scope="session")
def golden_frames() -> list[GoldenFrame]:
    """Every recorded frame: requests and responses of 59 request codes."""
    return FRAMES


@pytest.fixture(scope="session")
def protocol() -> dict[str, Any]:
    """Codes, headers and bodies as the Java classes declare them."""
    return json.loads((DATA / "protocol-4.9.7.json").read_text())


@pytest.fixture(scope="session")
def golden_log() -> bytes:
    """The commit log segment of a cleanly stopped store."""
    with tarfile.open(DATA / "store-4.9.7.tar.gz") as tar:
        member = tar.extractfile("store-clean/commitlog/00000000000000000000")
        assert member is not None
        return member.read()


@pytest.fixture(scope="session")
def golden_listing() -> list[dict[str, Any]]:
    """What the Java decoder says each record of `golden_log` holds."""
    with gzip.open(DATA / "store-4.9.7.messages.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]
