"""The pages of the client's API have each public name."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from mqbroker import client

FOLDER = Path(__file__).parent.parent / "docs" / "reference"


@pytest.mark.parametrize(("page", "name"), [("asyncio", "aio"), ("blocking", "blocking"), ("twisted", "deferred")])
def test_each_public_class_is_there(page: str, name: str) -> None:
    module = importlib.import_module(f"mqbroker.client.{name}")
    classes = {
        f"{module.__name__}.{each.__name__}"
        for each in vars(module).values()
        if inspect.isclass(each) and each.__module__ == module.__name__ and not each.__name__.startswith("_")
    }
    named = re.findall(r"\.\. autoclass:: (\S+)\n   :members:\n   :inherited-members:", text_of(f"api-{page}"))
    assert set(named) == classes
    assert len(classes) >= 3


def test_each_other_public_name_is_there() -> None:
    page, errors = text_of("api-values"), text_of("errors")
    assert ".. automodule:: mqbroker.client\n   :members:\n   :imported-members:" in page
    left_out = set(re.findall(r"\w+", page.partition(":exclude-members: ")[2].partition("\n\n")[0]))
    described = {name for name in client.__all__ if f".. py:exception:: mqbroker.client.{name}\n" in errors}
    assert left_out == described


def test_each_public_class_and_method_has_a_docstring() -> None:
    for name in ("aio", "blocking", "deferred"):
        module = importlib.import_module(f"mqbroker.client.{name}")
        for kind in (module.Producer, module.PushConsumer, module.PullConsumer):
            methods = {key: each for key, each in inspect.getmembers(kind) if not key.startswith("_")}
            assert {key for key, each in methods.items() if not inspect.getdoc(each)} == set(), kind


def text_of(page: str) -> str:
    return (FOLDER / f"{page}.rst").read_text()
