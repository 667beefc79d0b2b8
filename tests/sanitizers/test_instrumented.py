"""What is not an instrumented module of the copy is told, before any test."""

import sys
from pathlib import Path

import pytest

from mqbroker.kernel import compiled
from tests.sanitizers import instrumented
from tests.sources import ROOT

needs_compiled = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")


@needs_compiled
def test_a_module_of_another_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError, match="not the instrumented module below"):
        instrumented.check_module(tmp_path)


@needs_compiled
def test_a_module_that_is_not_instrumented_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instrumented, "MARKS", (b"__asan_elsewhere",))
    with pytest.raises(pytest.UsageError, match="built without sanitizers: it has no __asan_elsewhere"):
        instrumented.check_module(Path(compiled.__file__).parent)


@needs_compiled
def test_a_process_without_the_libraries_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instrumented, "MARKS", ())
    monkeypatch.setattr(instrumented, "mapped_files", set)
    with pytest.raises(pytest.UsageError, match="libasan is not loaded"):
        instrumented.check_module(Path(compiled.__file__).parent)


def test_no_module_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instrumented, "compiled", None)
    with pytest.raises(pytest.UsageError, match="the compiled module is not there"):
        instrumented.check_module(ROOT)


def test_files_of_this_process_are_found() -> None:
    assert Path(sys.executable).resolve() in instrumented.mapped_files()
