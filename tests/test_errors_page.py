"""docs/reference/errors.rst has each error class and each response code, with its cause and what to do."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import mqbroker
from mqbroker import client
from mqbroker.errors import MQError
from mqbroker.wire.codes import ResponseCode

PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "errors.rst").read_text()


def all_errors() -> set[type[MQError]]:
    for module in pkgutil.walk_packages(mqbroker.__path__, "mqbroker."):
        if not module.name.endswith("__main__") and not module.name.startswith("mqbroker.spark."):
            importlib.import_module(module.name)
    importlib.import_module("mqbroker.spark.errors")
    importlib.import_module("mqbroker.spark.java")
    return {MQError, *(each for each in subclasses(MQError) if each.__module__.startswith("mqbroker."))}


def subclasses(cls: type[MQError]) -> Iterator[type[MQError]]:
    for each in cls.__subclasses__():
        yield each
        yield from subclasses(each)


def name_of(cls: type) -> str:
    """Where users import it from."""
    return f"mqbroker.client.{cls.__name__}" if cls.__name__ in client.__all__ else f"{cls.__module__}.{cls.__name__}"


def test_each_error_class_is_there() -> None:
    expected = {name_of(cls) for cls in all_errors() if not cls.__name__.startswith("_")}
    assert len(expected) > 50
    assert sorted(re.findall(r"\.\. py:exception:: (\S+)", PAGE)) == sorted(expected)


def test_each_has_a_cause_and_a_cure() -> None:
    for block in PAGE.partition("\nResponse codes\n---")[0].split(".. py:exception:: ")[1:]:
        assert re.search(r":Cause: \w", block), block
        assert re.search(r":Cure: \S", block), block


def test_each_response_code_is_explained() -> None:
    assert [code.name for code in ResponseCode if f"``{code.name}``" not in PAGE] == []
