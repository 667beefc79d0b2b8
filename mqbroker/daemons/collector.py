"""Python's garbage collector, set for a process that serves for long."""

from __future__ import annotations

import gc

#: Containers that come to be between two collections of the youngest. Python's 700 are two reads of a busy connection.
YOUNGEST = 20_000


def settle_collector() -> None:
    """Leave what is there now, which stays, out of all collections: for when a daemon has started.

    Collecting it again and again, tens of thousands of objects each time, held answers back for 40 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNGEST, *gc.get_threshold()[1:])
