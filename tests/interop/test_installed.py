"""What an installation puts beside the interpreter: this environment has a wheel, not the checkout."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

from tests.sessions import follow, reader_environment

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parent.parent.parent
#: What comes to be in a checkout that is used.
_NOT_OURS = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist", "target", "dropin.cache", "*.so")


def test_twistd_lists_both_daemons(tmp_path: Path) -> None:
    listed = subprocess.run(
        [BIN / "twistd", "--help"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    commands = {line.split()[0] for line in listed.stdout.splitlines() if line.startswith("    ") and line.split()}
    assert {"namesrv", "mqbroker"} <= commands


def test_the_console_scripts_are_there() -> None:
    assert all((BIN / name).exists() for name in ("mq", "mqbroker", "mqnamesrv"))


def wheel(folder: Path) -> Path:
    """That of which tox has installed this environment, or else one that is made in `folder`."""
    made = Path(os.environ.get("TOX_WORK_DIR", folder), ".pkg", "dist")
    wheels = [path for path in made.glob("mqbroker-*.whl") if "editable" not in path.name]
    if not wheels:
        copy = folder / "copy"
        shutil.copytree(ROOT, copy, ignore=_NOT_OURS)
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w"]
        subprocess.run([*command, made, copy], check=True, timeout=300)
        wheels = list(made.iterdir())
    return max(wheels, key=lambda path: path.stat().st_mtime)


def test_the_first_ten_minutes(tmp_path: Path) -> None:
    """The tutorial's first page, with README's program, in a fresh environment that has the wheel and no extras."""
    fresh = tmp_path / "fresh"
    venv.create(fresh, with_pip=True)
    install = ["install", "-q", "--disable-pip-version-check"]
    subprocess.run([fresh / "bin" / "pip", *install, wheel(tmp_path)], cwd=tmp_path, check=True, timeout=300)
    environment = reader_environment(tmp_path, PATH=f"{fresh / 'bin'}{os.pathsep}{os.environ['PATH']}")
    where = "import mqbroker; print(mqbroker.__file__)"
    ended = subprocess.run(
        ["python", "-c", where], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert Path(ended.stdout).is_relative_to(fresh)
    assert follow([ROOT / "docs" / "tutorial" / "start.rst"], tmp_path / "work", environment) >= 7


def names(folder: Path, pattern: str) -> set[str]:
    return {path.name for path in folder.glob(pattern)}


def test_annotated_settings_and_the_pages_are_there() -> None:
    share = Path(sys.prefix) / "share"
    assert names(share / "mqbroker" / "conf", "*") == names(ROOT / "conf", "*")
    assert names(share / "mqbroker" / "examples", "**/*.py") == names(ROOT / "examples", "**/*.py")
    pages = {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.rst")}
    installed = share / "doc" / "mqbroker"
    assert {str(path.relative_to(installed)) for path in installed.rglob("*.*")} == pages | {"README.rst"}


def test_a_source_distribution_has_all_files(tmp_path: Path) -> None:
    copy, made = tmp_path / "copy", tmp_path / "made"
    shutil.copytree(ROOT, copy, ignore=_NOT_OURS)
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(made)!r})"
    made.mkdir()
    files = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, check=True, timeout=300)
    [archive] = made.iterdir()
    with tarfile.open(archive) as opened:
        packed = {name.partition("/")[2] for name in opened.getnames()}
    assert {name for name in files if name.startswith(("conf/", "docs/", "tests/"))}
    assert files - packed == set()
    assert "mqbroker/kernel/compiled.c" in packed  # so that Cython is not needed
