"""Sets the time of day of a running daemon, and of nobody else: by a preloaded library."""

import os
from pathlib import Path
from struct import Struct

from tests.daemons.permits import need

SOURCE = Path(__file__).with_suffix(".c")
_OFFSET = Struct("=q")


class SetClock:
    """The clock of the daemon that runs in `environment`; `offset_s`: how far it is from the machine's."""

    def __init__(self, folder: Path, name: str) -> None:
        library = folder / "set_clock.so"
        if not library.exists():
            need("setting the clock of one process", ["cc", "-shared", "-fPIC", "-o", str(library), str(SOURCE)])
        self.offset_s = 0
        self._path = folder / f"clock-{name}"
        self._path.write_bytes(_OFFSET.pack(0))
        self.environment = {"LD_PRELOAD": str(library), "MQBROKER_SET_CLOCK": str(self._path)}

    def jump(self, seconds: int) -> None:
        """Set it forward, or back."""
        self.offset_s += seconds
        fd = os.open(self._path, os.O_WRONLY)
        os.pwrite(fd, _OFFSET.pack(self.offset_s), 0)
        os.close(fd)
