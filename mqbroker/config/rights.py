"""Who may read a file that holds secrets."""

from __future__ import annotations

import os
import stat


def others_can_read(path: str) -> bool:
    """Whether more than its owner may read the file at `path`."""
    try:
        return bool(os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False
