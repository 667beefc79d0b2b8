"""A small file system of its own for a daemon, in a mount namespace that ends with the test."""

import signal
import subprocess
from pathlib import Path

from tests.daemons.permits import need
from tests.daemons.processes import wait_for


class SmallDisk:
    """A mounted file system of `size` bytes at `path`, for processes that are run by `wrapper`; `seen` is it for us."""

    def __init__(self, kind: str, folder: Path, size: int) -> None:
        self.path = folder / "disk"
        self.path.mkdir()
        mount = f"mount -t tmpfs -o size={size} tmpfs {self.path}"
        if kind == "ext4":
            image = folder / "image"
            with image.open("wb") as file:
                file.truncate(size)
            need("a small ext4", ["mkfs.ext4", "-q", "-m", "0", str(image)])
            mount = f"mount -o loop {image} {self.path}"
        need(f"a small {kind}", ["unshare", "-m", "sh", "-c", mount])
        self._holder = subprocess.Popen(["unshare", "-m", "sh", "-c", f"{mount} && exec sleep 3600"])
        self.seen = Path(f"/proc/{self._holder.pid}/root{self.path}")
        wait_for(lambda: self.path.stat().st_dev != self.seen.stat().st_dev, f"{kind} to be mounted")

    def wrapper(self, folder: Path) -> list[str]:
        """Runs a command inside, from `folder`."""
        enter = ["nsenter", "-t", str(self._holder.pid), "-m"]
        need("entering a mount namespace", [*enter, "true"])
        return [*enter, "sh", "-c", 'cd "$0" && exec "$@"', str(folder)]

    @property
    def _ballast(self) -> Path:
        return self.seen / "ballast"

    def fill(self, spare: int = 0) -> None:
        """Take all room but about `spare` bytes."""
        with self._ballast.open("ab", buffering=0) as file:
            for piece in (65536, 4096):
                try:
                    while True:
                        file.write(bytes(piece))
                except OSError:
                    pass
            file.truncate(max(0, file.tell() - spare))

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink()

    def end(self) -> None:
        self._holder.send_signal(signal.SIGKILL)
        self._holder.wait()


KINDS = ["tmpfs", "ext4"]
