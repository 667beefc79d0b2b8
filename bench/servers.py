"""The brokers that are compared, and the null server: how each starts, and what it costs."""

import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import attrs

from bench import rmqload
from bench.rmqload import LoadFailed, Result, Shape
from tests.interop.java import JavaSystem
from tests.interop.processes import Process, ProcessFailed, free_ports

#: "twistd" is ours too, run by twistd and not by its console script.
Kind = Literal["ours", "twistd", "java", "echo"]

# As the Java system's own start script has it, shrunk from 8 GiB to what a small machine has.
JVM = ("-Xms1g", "-Xmx1g", "-Xmn512m", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=1g")

_ONE = Shape("first answer", "send", 1, 1, 128, 1)


@attrs.frozen
class Server:
    """A running server. `store` is its directory."""

    kind: Kind
    port: int
    store: Path
    process: Process
    program: Path

    def load(self, topic: str, shape: Shape) -> Result:
        """Put a load on it. Raises LoadFailed, with its last output where it is no longer there."""
        try:
            return rmqload.run(self.program, self.port, topic, shape)
        except LoadFailed as failure:
            if self.process.running:
                raise
            raise LoadFailed(f"{failure}\n{self.process.name} died\n{self.process.tail()}") from None

    def memory_mib(self) -> tuple[float, float]:
        """(private, resident): memory that no file backs, and all that is in memory.

        The pages of mapped files are the page cache's: the kernel takes them back as it needs them. smaps counts them
        as private where no other process maps them too, so they are told apart by RssAnon. Raises LoadFailed.
        """
        try:
            text = Path(f"/proc/{self.process.pid}/status").read_text()
            status = dict(line.split(":", 1) for line in text.splitlines())
            private, resident = (int(status[name].split()[0]) / 1024 for name in ("RssAnon", "VmRSS"))
        except (OSError, KeyError):  # it is gone, or not yet waited for
            raise LoadFailed(f"{self.process.name} died\n{self.process.tail()}") from None
        return private, resident


@attrs.frozen
class Bench:
    """Where servers are started: fresh data below `scratch`, with the same settings for both brokers."""

    scratch: Path
    program: Path
    java: JavaSystem | None

    @contextmanager
    def server(self, kind: Kind, **settings: str) -> Iterator[Server]:
        """A server with an empty store, ready to answer; at the end it is killed and its store deleted.

        `settings` are keys of the brokers' files. Raises ProcessFailed where it gives no answer.
        """
        port = free_ports(int(settings.get("shards", "1")))
        store = self.scratch / f"{kind}-{port}"
        process = self.start(kind, port, store, settings)
        server = Server(kind, port, store, process, self.program)
        try:
            self.wait_answer(server)
            yield server
        finally:
            # Nobody reads this store again; but shards would outlive a killed supervisor for a while.
            if "shards" in settings:
                process.stop()
            else:
                process.kill()
            shutil.rmtree(store, ignore_errors=True)

    def start(self, kind: Kind, port: int, store: Path, settings: Mapping[str, str]) -> Process:
        """Start the program on a store directory, and wait for nothing."""
        command, env = self._command(kind, port, store, settings)
        return Process(f"{kind}-{port}", command, self.scratch, env)

    def start_seconds(self, kind: Kind) -> float:
        """From the start of the program to its first answer to a send, on an empty store."""
        began = time.monotonic()
        with self.server(kind):
            return time.monotonic() - began

    def require_room(self, needed_bytes: int) -> None:
        """Raise LoadFailed unless the disk below `scratch` has so much room, and a tenth of itself to spare."""
        disk = shutil.disk_usage(self.scratch)
        room = disk.free - disk.total // 10
        if room < needed_bytes:
            why = f"needs {needed_bytes >> 20:,} MiB below {self.scratch}, {max(0, room) >> 20:,} MiB are to be had"
            raise LoadFailed(f"{why} (a tenth of the disk is left free); give another directory with --scratch")

    def wait_answer(self, server: Server) -> None:
        """Return when a send is answered with SUCCESS. Raises ProcessFailed where none is within a minute."""
        process = server.process
        end = time.monotonic() + 60
        while time.monotonic() < end and process.running:
            try:
                socket.create_connection(("127.0.0.1", server.port), 1).close()
                rmqload.run(self.program, server.port, "first", _ONE, limit_s=10)
            except (OSError, LoadFailed):
                time.sleep(0.002)
            else:
                return
        raise ProcessFailed(f"{process.name} gives no answer\n{process.tail()}")

    def _command(
        self, kind: Kind, port: int, store: Path, settings: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        if kind == "echo":
            return [str(self.program), "echo", "-p", str(port), "-l", "3600"], {}
        conf = self._write_conf(f"{kind}-{port}", port, store, settings)
        if kind == "ours":
            return [str(Path(sys.executable).parent / "mqbroker"), "-c", str(conf)], {}
        if kind == "twistd":
            twistd = str(Path(sys.executable).parent / "twistd")
            return [twistd, "--nodaemon", "--pidfile=", "mqbroker", "-c", str(conf)], {}
        assert self.java is not None
        main = "org.apache.rocketmq.broker.BrokerStartup"
        return self.java.command(self.scratch, main, "-c", str(conf), jvm=JVM), {"ROCKETMQ_HOME": str(self.java.home)}

    def _write_conf(self, name: str, port: int, store: Path, settings: Mapping[str, str]) -> Path:
        conf = self.scratch / f"{name}.conf"
        keys = {
            "brokerClusterName": "bench-cluster",
            "brokerName": "bench-broker",
            "brokerId": "0",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": str(port),
            "haListenPort": str(port + 1),
            "storePathRootDir": str(store),
            "storePathCommitLog": str(store / "commitlog"),
            "flushDiskType": "ASYNC_FLUSH",
            "autoCreateTopicEnable": "true",
            "diskMaxUsedSpaceRatio": "95",
            # On a busy machine Java's refuses what waited 200 ms; what is measured is how long it waits.
            "brokerFastFailureEnable": "false",
            "osPageCacheBusyTimeOutMills": "60000",
            **settings,
        }
        conf.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        return conf
