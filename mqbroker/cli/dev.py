"""`mq dev`: a name server and a broker in this process, to develop against."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from mqbroker.cli.failures import told

DATA = "mq-data"

#: In memory only if this much is free: containers often have 64 MiB there, which the first log segment would fill.
_SHM = Path("/dev/shm")
_SHM_FREE_BYTES_MIN = 1024 * 1024 * 1024

PORT = click.IntRange(0, 65535)


@click.command()
@click.option("--port", type=PORT, default=9876, show_default=True, help="The name server's port; 0 picks a free one.")
@click.option(
    "--broker-port", type=PORT, default=10911, show_default=True, help="The broker's port; 0 picks a free one."
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
        with tempfile.TemporaryDirectory(prefix="mq-dev-", dir=_memory(), ignore_cleanup_errors=True) as directory:
            yield Path(directory)
    else:
        data.mkdir(parents=True, exist_ok=True)
        yield data


def _memory() -> Path | None:
    """A directory in memory, or None for the usual temporary directory."""
    if os.access(_SHM, os.W_OK) and shutil.disk_usage(_SHM).free >= _SHM_FREE_BYTES_MIN:
        return _SHM
    return None
