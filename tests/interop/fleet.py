"""Real daemons of both kinds, and Java clients, on free ports: started, and stopped again, as one fleet."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeVar

import attrs

from tests.interop.java import JavaSystem
from tests.interop.processes import EventProcess, Process, free_ports

Kind = Literal["java", "ours"]
P = TypeVar("P", bound=Process)

_READY = "boot success"

_MAINS = {
    ("java", "namesrv"): "org.apache.rocketmq.namesrv.NamesrvStartup",
    ("java", "broker"): "org.apache.rocketmq.broker.BrokerStartup",
    ("ours", "namesrv"): "mqnamesrv",
    ("ours", "broker"): "mqbroker",
}

# Small files start fast and roll over within a test. Both kinds read the same keys.
SMALL_STORE = {
    "mappedFileSizeCommitLog": "4194304",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "diskMaxUsedSpaceRatio": "99",
}


@attrs.define
class Namesrv:
    """A running name server."""

    addr: str
    process: Process


@attrs.define
class Broker:
    """A broker that runs, or ran: `process` is its latest life."""

    kind: Kind
    name: str
    addr: str
    store: Path
    conf: Path
    process: Process


@attrs.define
class Fleet:
    """Whatever is started here is stopped by `stop_all`, the newest first."""

    scratch: Path
    java: JavaSystem
    _processes: list[Process] = attrs.field(factory=list)

    def namesrv(self, kind: Kind) -> Namesrv:
        """Start a name server; returns when it is ready."""
        port = free_ports()
        conf = self._write_conf(
            f"namesrv-{port}",
            {
                "listenPort": str(port),
                "kvConfigPath": str(self.scratch / f"namesrv-{port}.json"),
                "configStorePath": str(self.scratch / f"namesrv-{port}.properties"),
            },
        )
        return Namesrv(f"127.0.0.1:{port}", self._daemon(kind, "namesrv", conf))

    def broker(self, kind: Kind, namesrv: Namesrv, store: Path | None = None, **settings: str) -> Broker:
        """Start a broker, on the store directory `store` where given; returns when it is ready and registered."""
        port = free_ports()
        name = settings.get("brokerName", f"broker-{port}")
        store = store or self.scratch / f"store-{port}"
        conf = self._write_conf(
            f"broker-{port}",
            {
                "brokerClusterName": "Interop",
                "brokerName": name,
                "brokerId": "0",
                "brokerIP1": "127.0.0.1",
                "brokerIP2": "127.0.0.1",
                "listenPort": str(port),
                "haListenPort": str(port + 1),
                "namesrvAddr": namesrv.addr,
                "storePathRootDir": str(store),
                "storePathCommitLog": str(store / "commitlog"),
                **SMALL_STORE,
                **settings,
            },
        )
        return Broker(kind, name, f"127.0.0.1:{port}", store, conf, self._daemon(kind, "broker", conf))

    def restart(self, broker: Broker) -> None:
        """Start a stopped or killed broker again, with its settings, port and store; returns when it is ready."""
        assert not broker.process.running
        broker.process = self._daemon(broker.kind, "broker", broker.conf)

    def peer(self, command: str, namesrv: Namesrv, **options: object) -> EventProcess:
        """Start a Java client; `_` in an option's name stands for `-`. See `java/src` for commands and options."""
        name = self._name(f"peer-{command}")
        args = [command, "--namesrv", namesrv.addr]
        for key, value in options.items():
            args += [f"--{key.replace('_', '-')}", str(value).lower() if isinstance(value, bool) else str(value)]
        line = self.java.command(self.scratch, "mqbroker.interop.Peer", *args)
        return self._keep(EventProcess(name, line, self.scratch))

    def mqadmin(self, *args: str) -> str:
        """Run the Java mqadmin and return what it printed."""
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        line = self.java.command(self.scratch, main, *args)
        process = self._keep(Process(self._name("mqadmin"), line, self.scratch, self._java_home()))
        process.wait()
        return "\n".join(process.lines)

    def stop_all(self) -> None:
        """End what still runs, the newest first: our daemons in good order; all else at once, for Java takes 10 s."""
        failures = []
        for process in reversed(self._processes):
            try:
                if process.name.startswith("ours-"):
                    process.stop()
                else:
                    process.kill()
            except AssertionError as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def report(self) -> str:
        """The last output of each process."""
        return "\n".join(process.tail() for process in self._processes)

    def _daemon(self, kind: Kind, role: Literal["namesrv", "broker"], conf: Path) -> Process:
        main = _MAINS[kind, role]
        if kind == "java":
            command = self.java.command(self.scratch, main, "-c", str(conf))
        else:
            command = [str(Path(sys.executable).parent / main), "-c", str(conf)]
        process = self._keep(Process(self._name(f"{kind}-{role}"), command, self.scratch, self._java_home()))
        process.wait_line(_READY)
        return process

    def _java_home(self) -> dict[str, str]:
        return {"ROCKETMQ_HOME": str(self.java.home)}

    def _keep(self, process: P) -> P:
        self._processes.append(process)
        return process

    def _name(self, base: str) -> str:
        return f"{base}~{len(self._processes)}"

    def _write_conf(self, name: str, conf: Mapping[str, str]) -> Path:
        path = self.scratch / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in conf.items()))
        return path
