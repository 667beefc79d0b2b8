"""`mq dev`: a name server and a broker in this process, to develop against."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from mqbroker.cli.failures import Failure, told

DATA = "mq-data"

#: In memory only if this much is free: containers often have 64 MiB there, which the first log segment would fill.
_SHM = Path("/dev/shm")
_SHM_FREE_BYTES_MIN = 1024 * 1024 * 1024

_PREFIX = "mq-dev-"
#: A directory that was made a moment ago may not be locked yet.
_UNLOCKED_SECONDS_MAX = 60

PORT = click.IntRange(0, 65535)


@click.command()
@click.option(
    "--port",
    type=PORT,
    metavar="PORT",
    default=9876,
    show_default=True,
    help="The name server's port; 0 picks a free one.",
)
@click.option(
    "--broker-port",
    type=PORT,
    metavar="PORT",
    default=10911,
    show_default=True,
    help="The broker's port; 0 picks a free one.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=DATA,
    show_default=True,
    help="The directory to store messages in.",
)
@click.option("--memory", is_flag=True, help="Store messages in a directory in memory, which is removed at the end.")
def dev(port: int, broker_port: int, data: Path, memory: bool) -> None:
    """Run a name server and a broker in one process, on 127.0.0.1 only, until Ctrl-C.

    Topics are created by the first message sent to them.
    """
    if port == broker_port != 0:
        raise click.UsageError(f"--port and --broker-port are both {port}: give them different ones")
    began = time.monotonic()
    with told():
        from mqbroker.cli.devserver import Place, serve_dev

        with _directory(data, memory) as directory:
            serve_dev(Place(directory, port, broker_port, keeps=not memory), began)


@contextmanager
def _directory(data: Path, memory: bool) -> Iterator[Path]:
    if memory:
        parent = _memory()
        remove_abandoned(parent)
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True) as directory:
            lock = _lock(Path(directory))
            try:
                yield Path(directory)
            finally:
                os.close(lock)
    else:
        try:
            data.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            advice = "name another directory with `mq dev --data`"
            raise Failure(f"cannot create {data}: {error.strerror}; {advice}") from error
        yield data


def _memory() -> Path:
    """A directory in memory where there is room, else the usual temporary directory."""
    if os.access(_SHM, os.W_OK) and shutil.disk_usage(_SHM).free >= _SHM_FREE_BYTES_MIN:
        return _SHM
    return Path(tempfile.gettempdir())


def _lock(directory: Path) -> int:
    """Lock a directory until the returned descriptor is closed; raises OSError if another process has locked it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def remove_abandoned(parent: Path) -> None:
    """Remove the directories of processes that were killed: they would hold memory until the machine is restarted."""
    for directory in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = directory.lstat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > _UNLOCKED_SECONDS_MAX:
                lock = _lock(directory)
                try:
                    shutil.rmtree(directory, ignore_errors=True)
                finally:
                    os.close(lock)
