"""How-to pages on running daemons: followed as they stand, with what they print."""

from pathlib import Path

import pytest

from tests.daemons.processes import SOURCE
from tests.sessions import follow, reader_environment

FOLDER = Path(__file__).parent.parent.parent / "docs" / "howto"


@pytest.mark.daemons
@pytest.mark.parametrize(("page", "typed"), [("run", 10), ("logs", 10), ("change-settings", 6)])
def test_a_how_to_for_daemons(tmp_path: Path, page: str, typed: int) -> None:
    environment = reader_environment(tmp_path, PYTHONPATH=SOURCE)
    assert follow([FOLDER / f"{page}.rst"], tmp_path / "work", environment) == typed
