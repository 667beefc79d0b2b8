"""The brokers that are compared, and the null server: how each starts, and what it costs."""

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import attrs

from bench import rmqload
from tests.interop.java import JavaSystem
from tests.interop.processes import Process, ProcessFailed, free_ports

Kind = Literal["ours", "java", "echo"]

# As the Java system's own start script has it, shrunk from 8 GiB to what a small machine has.
_JVM = ("-Xms1g", "-Xmx1g", "-Xmn512m", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=1g")

_ONE = rmqload.Shape("first answer", "send", 1, 1, 128, 1)


@attrs.frozen
class Server:
    """A running server."""

    kind: Kind
    port: int
    process: Process

    def memory_mib(self) -> tuple[int, int]:
        """(private, resident): memory that no file backs, and all that is in memory.

        The pages of mapped files are the page cache's: the kernel takes them back as it needs them. smaps counts them
        as private where no other process maps them too, so they are told apart by RssAnon.
        """
        status = dict(line.split(":", 1) for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines())
        private, resident = (int(status[name].split()[0]) // 1024 for name in ("RssAnon", "VmRSS"))
        return private, resident


@attrs.frozen
class Bench:
    """Where servers are started: fresh data below `scratch`, with the same settings for both brokers."""

    scratch: Path
    load: Path
    java: JavaSystem | None

    @contextmanager
    def server(self, kind: Kind) -> Iterator[Server]:
        """A server with an empty store, ready to answer; it is stopped at the end."""
        port = free_ports()
        command, env = self._command(kind, port)
        process = Process(f"{kind}-{port}", command, self.scratch, env)
        try:
            self._wait_answer(process, port)
            yield Server(kind, port, process)
        finally:
            # Nobody reads these stores again.
            process.kill()

    def start_seconds(self, kind: Kind) -> float:
        """From the start of the program to its first answer to a send, on an empty store."""
        began = time.monotonic()
        with self.server(kind):
            return time.monotonic() - began

    def _wait_answer(self, process: Process, port: int) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and process.running:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                rmqload.run(self.load, port, "first", _ONE)
            except (OSError, rmqload.LoadFailed):
                time.sleep(0.002)
            else:
                return
        raise ProcessFailed(f"{process.name} gives no answer\n{process.tail()}")

    def _command(self, kind: Kind, port: int) -> tuple[list[str], dict[str, str]]:
        if kind == "echo":
            return [str(self.load), "echo", "-p", str(port), "-l", "3600"], {}
        conf = self._write_conf(f"{kind}-{port}", port)
        if kind == "ours":
            return [str(Path(sys.executable).parent / "mqbroker"), "-c", str(conf)], {}
        assert self.java is not None
        main = "org.apache.rocketmq.broker.BrokerStartup"
        return self.java.command(self.scratch, main, "-c", str(conf), jvm=_JVM), {"ROCKETMQ_HOME": str(self.java.home)}

    def _write_conf(self, name: str, port: int) -> Path:
        conf = self.scratch / f"{name}.conf"
        store = self.scratch / name
        conf.write_text(
            f"brokerClusterName=bench-cluster\nbrokerName=bench-broker\nbrokerId=0\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\n"
            f"listenPort={port}\nhaListenPort={port + 1}\n"
            f"storePathRootDir={store}\nstorePathCommitLog={store}/commitlog\n"
            "flushDiskType=ASYNC_FLUSH\nautoCreateTopicEnable=true\ndiskMaxUsedSpaceRatio=95\n"
        )
        return conf
