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


def test_the_page_has_each_of_them() -> None:
    page = settings_page.PAGE.read_text()
    assert page == settings_page.page_with(settings_page.render(), page), "write it: python -m tests.settings_page"


def test_each_has_its_reason() -> None:
    items = settings_page.render().split("\n\n")
    assert len(items) == len({unused.why for unused in UNUSED.values()})
    assert sorted(re.findall(r"``(\w+)``", settings_page.render().replace("\n", " "))) == sorted(UNUSED)
