"""The compiled part of the hot path, where the machine that installed the package had a C compiler.

Each function takes a prefix of what it is given, as long as that is plain, and says how far it came; the caller does
the next piece in Python, which is the specification, and calls again. Bytes in, values out: nothing of it holds memory
of a file, or state of a store, between two calls. Knows nothing of the other packages.

`compiled` is None without it, or where the environment says ``MQBROKER_KERNEL=off``.
"""

from __future__ import annotations

import os
from types import ModuleType


def _load() -> ModuleType | None:
    if os.environ.get("MQBROKER_KERNEL") == "off":
        return None
    try:
        from mqbroker.kernel import compiled
    except ImportError:
        return None
    return compiled


compiled = _load()
