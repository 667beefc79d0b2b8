"""Whether each setting is read by anything, or the documentation says that it has no effect."""

import re
from pathlib import Path

from mqbroker.config import BrokerSettings, NamesrvSettings
from mqbroker.config.fields import settings_of
from mqbroker.config.settings import ClientSettings, NettySettings, StoreSettings, TlsSettings
from mqbroker.config.unused import UNUSED
from tests import settings_page

ROOT = Path(__file__).parent.parent.parent
PARTS = (BrokerSettings, NamesrvSettings, NettySettings, ClientSettings, StoreSettings, TlsSettings)


def read_by_nobody() -> set[str]:
    """Keys whose fields no module names but those of the settings themselves."""
    paths = (path for path in (ROOT / "mqbroker").rglob("*.py") if path.parent.name != "config")
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in paths)))
    return {setting.key for part in PARTS for setting in settings_of(part) if setting.field not in words}


def test_settings_without_effect_are_those_that_are_said_to_have_none() -> None:
    settings = {setting.key for part in PARTS for setting in settings_of(part)}
    # The file of TLS settings is read with the settings, the second must not be true, and the third is asked by a
    # property of the settings.
    assert read_by_nobody() - {"tls.config.file", "duplicationEnable", "vipPortEnable"} == settings & UNUSED.keys()


def test_the_reference_is_what_the_definitions_say() -> None:
    for path, text in settings_page.pages().items():
        assert path.read_text() == text, "write it: python -m tests.settings_page"


def test_each_setting_has_a_block_with_its_effect() -> None:
    blocks = [block for name in settings_page.PAGES for block in blocks_of(name)]
    keys = [block.partition("\n")[0] for block in blocks]
    assert sorted(set(keys)) == sorted(settings_page.all_settings())
    for block in blocks:
        assert re.search(r"\n\n   [A-Z\d`][^\n]+", block), block


def test_each_without_effect_has_its_reason() -> None:
    items = blocks_of("settings-without-effect")
    assert len(items) == len({unused.why for unused in UNUSED.values()})
    keys = [word for item in items for word in item.partition("\n\n")[0].split()]
    assert sorted(keys) == sorted(UNUSED)


def test_what_may_be_changed_is_marked() -> None:
    blocks = [block for name in settings_page.PAGES for block in blocks_of(name) if name != "settings-namesrv"]
    mark = "*May be changed while the daemon runs.*"
    marked = {block.partition("\n")[0] for block in blocks if mark in " ".join(block.split())}
    assert marked == settings_page.changeable_keys()
    assert {"fileReservedTime", "brokerPermission"} <= marked


def blocks_of(name: str) -> list[str]:
    """The blocks of a page of settings, each from the key on."""
    return (settings_page.FOLDER / f"{name}.rst").read_text().split(".. confval:: ")[1:]
