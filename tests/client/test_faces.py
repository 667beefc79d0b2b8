"""The three faces have the same calls with the same arguments: those of their cores."""

import inspect
import subprocess
import sys
from typing import Any

import pytest

from mqbroker.client import aio, blocking, deferred

CLIENTS = ["Producer", "PullConsumer", "PushConsumer", "TransactionProducer"]


@pytest.mark.parametrize("face", [deferred, blocking])
@pytest.mark.parametrize("client", CLIENTS)
def test_no_face_lacks_a_public_name(face: Any, client: Any) -> None:
    names = {name for name in dir(getattr(aio, client)) if not name.startswith("_")}
    assert names <= set(dir(getattr(face, client)))


@pytest.mark.parametrize("face", [deferred, blocking])
@pytest.mark.parametrize("client", CLIENTS)
def test_calls_take_the_same_and_say_what_they_do(face: Any, client: Any) -> None:
    theirs = inspect.getmembers(getattr(face, client), inspect.isfunction)
    for name, method in theirs:
        if not name.startswith("_"):
            assert inspect.getdoc(method), name
            ours = getattr(getattr(aio, client), name, None)
            if ours is not None:
                assert list(inspect.signature(method).parameters) == list(inspect.signature(ours).parameters), name


def test_nothing_of_twisted_is_imported() -> None:
    code = "import sys, mqbroker.client.blocking, mqbroker.client.aio; print('twisted' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
