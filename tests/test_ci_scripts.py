"""The scripts in .ci: what `everything` runs is all that a push runs and more, and what each part's result is."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CI = ROOT / ".ci"
#: Variables with a default that are no amounts: seeds to begin with, and kinds.
NO_AMOUNTS = re.compile(r"MQBROKER_(\w+_SEED|KINDS)$")
#: Amounts that others multiply already.
OF_OTHERS = {"MQBROKER_HISTORY_FAULTS": "of each of MQBROKER_HISTORY_ROUNDS"}


def defaults() -> Iterator[tuple[str, int]]:
    """Each amount that a test reads from the environment, with what it is there without it."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        tree = ast.parse(path.read_text())
        constants = {
            ast.unparse(node.targets[0]): node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(("environ.get", "getenv")):
                continue
            name, *default = [constants.get(ast.unparse(each), getattr(each, "value", None)) for each in node.args]
            if default and str(name).startswith("MQBROKER_") and not NO_AMOUNTS.match(str(name)):
                yield str(name), int(str(default[0]))


def script(name: str, *functions: str) -> str:
    """The functions of a script."""
    text = (CI / name).read_text()
    found = [re.search(rf"^{function}\(\) \{{.*?^\}}\n", text, re.MULTILINE | re.DOTALL) for function in functions]
    return "".join(each[0] for each in found if each is not None)


def run(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False, cwd=ROOT)


def amounts(times: str) -> dict[str, int]:
    """The amounts of `everything`."""
    text = (CI / "everything").read_text()
    made = re.search(r"^amounts=\(\n.*?^\)\n", text, re.MULTILINE | re.DOTALL)
    assert made is not None
    lines = run(f'times={times}\n{made[0]}printf "%s\\n" "${{amounts[@]}}"').stdout.splitlines()
    return {name: int(value) for name, _, value in (line.partition("=") for line in lines)}


def test_everything_has_ten_times_each_amount_of_the_tests() -> None:
    most: dict[str, int] = {}
    for name, default in defaults():
        most[name] = max(default, most.get(name, 0))
    assert len(most) >= 11
    assert amounts("10").keys() == most.keys()
    for times in (1, 10):
        given = amounts(str(times))
        few = {name for name in most if given[name] < most[name] * (1 if name in OF_OTHERS else times)}
        assert few == set()


def test_everything_runs_what_a_push_runs_without_the_compiled_module() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    pushed = tox["python-path"]["tests"].split()
    assert all((ROOT / path).exists() for path in pushed)
    text = (CI / "everything").read_text().replace("\\\n", "")
    (line,) = re.findall(r"tox run -e python-path -- (.*)", text)
    all_of_it = [Path(each) for each in line.split()]
    assert [path for path in pushed if not any(Path(path).is_relative_to(each) for each in all_of_it)] == []


@pytest.mark.parametrize(("code", "result"), [(0, "passed"), (77, "skipped"), (1, "FAILED")])
def test_a_part_of_everything_that_is_skipped_says_so(code: int, result: str) -> None:
    shown = run(f"""
        set -uo pipefail
        results=() failed=0
        {script("everything", "part", "with_python")}
        part "its name" bash -c "exit {code}"
        part "another" true
        echo "${{results[*]}} failed=$failed"
    """).stdout.splitlines()[-1]
    assert re.fullmatch(rf" +\d+  {result}  its name +\d+  passed  another failed={int(result == 'FAILED')}", shown)


def test_a_python_that_is_not_there_is_skipped() -> None:
    functions = script("everything", "with_python")
    assert run(f"{functions} with_python 3.9999 false").returncode == 77
    assert run(f"{functions} with_python 3 true").returncode == 0
    assert run(f"{functions} with_python 3 false").returncode == 1


def test_a_newer_python_that_cannot_be_fetched_is_skipped(tmp_path: Path) -> None:
    made = tmp_path / "made"
    text = f"""
        set -euo pipefail
        made={made} root={made}/root version=3.14 default_tests=()
        id() {{ echo 1000; }}
        {script("newer_python", "skip", "prepare", "run_tests")}
    """
    for step in ("prepare", "run_tests"):
        done = run(f"{text} {step}")
        assert (done.returncode, done.stdout) == (77, "Python 3.14 is not tested: not root\n")


def part_of_a_push(tmp_path: Path, command: str, more: str = "") -> tuple[int, str]:
    """The exit code of a part of .ci/run, and its row in the table."""
    table = tmp_path / "durations"
    done = run(f"""
        set -euo pipefail
        made={tmp_path} durations={table}
        {script("run", "note_cpu", "part", "make_environments")}
        {more}
        part "its name" {command}
    """)
    return done.returncode, table.read_text().split(maxsplit=2)[2]


@pytest.mark.parametrize(("code", "shown"), [(0, ""), (77, "  skipped"), (3, "  FAILED")])
def test_a_part_of_a_push_that_is_skipped_says_so(tmp_path: Path, code: int, shown: str) -> None:
    assert part_of_a_push(tmp_path, f"bash -c 'exit {code}'") == (code % 77, f"its name{shown}\n")


@pytest.mark.parametrize("failing", ["", "pip", "run-parallel", "interop"])
def test_each_step_of_making_environments_counts(tmp_path: Path, failing: str) -> None:
    fakes = f"""
        pip() {{ [ pip != "{failing}" ]; }}
        tox() {{ [ -z "{failing}" ] || [[ " $* " != *" {failing} "* ]]; }}
    """
    code, row = part_of_a_push(tmp_path, "make_environments", fakes)
    assert (code, row) == ((1, "its name  FAILED\n") if failing else (0, "its name\n"))
