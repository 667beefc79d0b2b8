"""The annotated files in conf/: they load without a warning, keep to the loopback, and are right about defaults."""

import re
from pathlib import Path

import attrs
import pytest

from mqbroker.config import load_broker_settings, load_namesrv_settings

CONF = Path(__file__).parent.parent / "conf"


def with_comments_made_real(path: Path, target: Path) -> Path:
    """A copy in which every commented-out setting is set, save the paths, which are examples."""
    target.write_text(re.sub(r"^#(?!\w*Path)(\w+=)", r"\1", path.read_text(), flags=re.MULTILINE))
    assert target.read_text() != path.read_text()
    return target


@pytest.mark.parametrize(
    ("name", "load"), [("namesrv.conf", load_namesrv_settings), ("broker.conf", load_broker_settings)]
)
def test_loads_without_a_warning_and_listens_on_the_loopback(name: str, load: type) -> None:
    warnings: list[str] = []
    settings = load(str(CONF / name), warn=warnings.append)
    assert warnings == []
    assert settings.server.bind_address == "127.0.0.1"


def test_what_is_commented_out_is_the_default(tmp_path: Path) -> None:
    real = load_broker_settings(str(CONF / "broker.conf"))
    spelt_out = load_broker_settings(str(with_comments_made_real(CONF / "broker.conf", tmp_path / "broker.conf")))
    assert attrs.evolve(spelt_out, config_path=real.config_path) == real
