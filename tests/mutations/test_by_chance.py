"""Which files mistakes are made in by chance, and the tests of these."""

import sys
from pathlib import Path

import pytest

from tests.mutations import by_chance


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("mqbroker/kernel/frames.pxi", "frames.pxi: mistakes by chance are made in Python alone"),
        ("mqbroker/kernel/compiled.pyi", "not a Python file of"),
        ("mqbroker/no_such_file.py", "no_such_file.py: not a Python file of"),
        ("tests/sources.py", "sources.py: not a Python file of"),
    ],
)
def test_files_that_cannot_have_mistakes_are_refused(
    file: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(by_chance.ROOT)
    monkeypatch.setattr(sys, "argv", ["by_chance", file])
    with pytest.raises(SystemExit):
        by_chance.main()
    assert why in capsys.readouterr().err


def test_tests_of_a_file_are_those_that_name_it() -> None:
    tests = by_chance.tests_of(Path("spark/rows.py"))
    assert "tests/spark/test_decode.py" in tests
    assert by_chance.tests_of(Path("broker/delay.py"))[0] == "tests/broker/test_delay.py"
