"""The documentation, built once for the tests of its pages."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages, where ``MQBROKER_SITE`` names their directory those. A warning of Sphinx fails the tests."""
    if built_before := os.environ.get("MQBROKER_SITE"):
        return Path(built_before)
    missing = [name for name in ("sphinx", "furo", "sphinx_design", "sphinx_copybutton") if find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: pip install '.[docs]'")
    built: Path = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(ROOT / "docs"), str(built)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    return built
