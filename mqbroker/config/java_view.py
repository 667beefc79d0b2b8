"""A broker's settings as a Java peer expects them: all keys of the Java broker, as `key=value` lines.

Keys that have no effect here are shown with Java's default. What is secret is never shown.
"""

from __future__ import annotations

import re
from typing import Any

from mqbroker.config.load import show_settings
from mqbroker.config.unused import UNUSED

_DEFAULTS = {key: unused.default for key, unused in UNUSED.items() if unused.default is not None}
_DEFAULTS["enableDLegerCommitLog"] = "false"
_is_secret = re.compile("password|secret|credential|accesskey|token", re.IGNORECASE).search


def java_properties(settings: Any) -> str:
    """The lines of `settings`, sorted by key."""
    shown = dict(line.split("=", 1) for line in show_settings(settings))
    table = _DEFAULTS | shown
    return "".join(f"{key}={table[key]}\n" for key in sorted(table) if not _is_secret(key))
