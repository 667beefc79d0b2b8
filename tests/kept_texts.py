"""What of a program is still reachable after its requests: texts of peers that outlived them."""

from __future__ import annotations

import gc
import sys
import types
from collections import deque
from typing import Any

import twisted.logger

#: Texts that begin like this are what tests send.
MARK = "kept-"
#: What logs hold is not of the product: until they begin, twisted.logger keeps the last events.
_LOGS = (twisted.logger.Logger, twisted.logger.LogPublisher, twisted.logger.LogBeginner)
_SKIPPED = (types.ModuleType, types.FrameType, *_LOGS)


def long_text(name: str, length: int) -> str:
    """A text that is found again, and no other."""
    return f"{MARK}{name}-".ljust(length, "x")


def kept_texts(*roots: Any, longest: int) -> list[str]:
    """Marked texts of more than `longest` characters or bytes that can be reached from `roots`, and from modules of the
    product, but not by way of tests or of libraries' modules."""
    gc.collect()
    modules = [vars(module) for name, module in sys.modules.items() if name.split(".")[0] == "mqbroker"]
    foreign = {id(vars(module)) for name, module in sys.modules.items() if name.split(".")[0] != "mqbroker"}
    seen: set[int] = set(foreign)
    queue: deque[Any] = deque([*modules, *roots])
    found = []
    while queue:
        one = queue.popleft()
        if id(one) in seen or isinstance(one, _SKIPPED):
            continue
        seen.add(id(one))
        if isinstance(one, str | bytes | bytearray):
            text = one if isinstance(one, str) else bytes(one).decode("latin-1")
            if len(text) > longest and MARK in text[:64]:
                found.append(text[text.index(MARK) :][:60])
            continue
        is_of_tests = str(type(one).__module__).split(".")[0] == "tests"
        if not is_of_tests or one in roots:
            queue.extend(gc.get_referents(one))
    return sorted(set(found))
