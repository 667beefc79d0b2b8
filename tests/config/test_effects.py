"""Whether each setting is read by anything, or the documentation says that it has no effect."""

import re
from pathlib import Path

from mqbroker.config import BrokerSettings, NamesrvSettings
from mqbroker.config.fields import settings_of
from mqbroker.config.settings import ClientSettings, NettySettings, StoreSettings
from mqbroker.config.tls import TlsSettings

ROOT = Path(__file__).parent.parent.parent
PARTS = (BrokerSettings, NamesrvSettings, NettySettings, ClientSettings, StoreSettings, TlsSettings)


def read_by_nobody():
    """Keys whose fields no module names but those of the settings themselves."""
    paths = (path for path in (ROOT / "mqbroker").rglob("*.py") if path.parent.name != "config")
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in paths)))
    return {setting.key for part in PARTS for setting in settings_of(part) if setting.field not in words}


def test_settings_without_effect_are_those_that_the_page_names():
    page = (ROOT / "docs" / "daemons.rst").read_text()
    paragraph = page[page.index("and have no effect either:") :].split("\n\n")[0]
    named = set(re.findall(r"``(\w+)``", paragraph)) - {"flushIntervalCommitLog"}
    # The file of TLS settings is read with the settings.
    assert read_by_nobody() - {"tls.config.file"} == named
