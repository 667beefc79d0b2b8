"""Real daemons of both kinds, and Java clients, on free ports: started, and stopped again, as one fleet."""

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import attrs

from tests.interop.java import SMALL, JavaSystem
from tests.interop.peers import Peer, PeerHost
from tests.interop.processes import Process, free_ports

Kind = Literal["java", "ours"]
P = TypeVar("P", bound=Process)

_READY = "boot success"

#: What a daemon of ours never logs, whatever its peers do: an error that nobody expected, in it or a shard of it.
_FAILURE = re.compile(r"^(shard \d+: )?[-\d]+ [:,\d]+ CRITICAL |Traceback \(most recent call last\)")
#: Of the log, in the report of one.
FAILURE_LINES = 30

_MAINS = {
    ("java", "namesrv"): "org.apache.rocketmq.namesrv.NamesrvStartup",
    ("java", "broker"): "org.apache.rocketmq.broker.BrokerStartup",
    ("ours", "namesrv"): "mqnamesrv",
    ("ours", "broker"): "mqbroker",
}

# Small files start fast and roll over within a test, and who waits for a busy disk waits and is not refused. Both kinds
# read the same keys.
SMALL_STORE = {
    "mappedFileSizeCommitLog": "4194304",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "diskMaxUsedSpaceRatio": "99",
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": "10000",
}


def failures_in(lines: Sequence[str]) -> list[int]:
    """Which lines of a daemon's log are of level CRITICAL, or begin a traceback."""
    return [number for number, line in enumerate(lines) if _FAILURE.search(line)]


@attrs.frozen
class Place:
    """Where a daemon runs: its address, what runs a command there, and what its environment has beside ours."""

    address: str = "127.0.0.1"
    wrapper: Sequence[str] = ()
    environment: Mapping[str, str] = attrs.Factory(dict)


HERE = Place()


@attrs.define
class Namesrv:
    """A name server that runs, or ran: `process` is its latest life."""

    kind: Kind
    addr: str
    conf: Path
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
    home: Path | None = None
    place: Place = HERE

    @property
    def ha_address(self) -> tuple[str, int]:
        """Host and port for replication."""
        host, _, port = self.addr.rpartition(":")
        return host, int(port) + 1


def log_files(broker: Broker) -> dict[str, bytes]:
    """The segments that have messages, by name."""
    segments = {path.name: path.read_bytes() for path in sorted((broker.store / "commitlog").iterdir())}
    return {name: data for name, data in segments.items() if data != bytes(len(data))}


@attrs.define
class Fleet:
    """Whatever is started here is stopped by `stop_all`, the newest first. Clients run in `host`, which outlives it.

    With `tls`, a file that both kinds read, all daemons take only encrypted connections, and make such.
    """

    scratch: Path
    java: JavaSystem
    host: PeerHost
    tls: Path | None = None
    _peers: list[Peer] = attrs.field(factory=list)
    _processes: list[Process] = attrs.field(factory=list)
    #: By the name of a process: so many lines of its log were checked.
    _checked: dict[str, int] = attrs.field(factory=dict)

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
        return Namesrv(kind, f"127.0.0.1:{port}", conf, self._daemon(kind, "namesrv", conf))

    def home(self, accounts: str) -> Path:
        """A new ROCKETMQ_HOME whose plain_acl.yml is `accounts`."""
        home = self.scratch / f"home-{len(list(self.scratch.glob('home-*')))}"
        shutil.copytree(self.java.home, home)
        (home / "conf" / "plain_acl.yml").write_text(accounts)
        return home

    def broker(
        self,
        kind: Kind,
        namesrv: Namesrv,
        store: Path | None = None,
        home: Path | None = None,
        place: Place = HERE,
        **settings: str,
    ) -> Broker:
        """Start a broker, on the store directory `store` where given; returns when it is ready and registered.

        `home` is its ROCKETMQ_HOME where it has one of its own.
        """
        port = free_ports(int(settings.get("shards", "1")))
        name = settings.get("brokerName", f"broker-{port}")
        store = store or self.scratch / f"store-{port}"
        conf = self._write_conf(
            f"broker-{port}",
            {
                "brokerClusterName": "Interop",
                "brokerName": name,
                "brokerId": "0",
                "brokerIP1": place.address,
                "brokerIP2": place.address,
                "listenPort": str(port),
                "haListenPort": str(port + 1),
                "namesrvAddr": namesrv.addr,
                "storePathRootDir": str(store),
                "storePathCommitLog": str(store / "commitlog"),
                **SMALL_STORE,
                **settings,
            },
        )
        process = self._daemon(kind, "broker", conf, home, place)
        return Broker(kind, name, f"{place.address}:{port}", store, conf, process, home, place)

    def restart(self, broker: Broker) -> None:
        """Start a stopped or killed broker again, with its settings, port and store; returns when it is ready."""
        assert not broker.process.running
        broker.process = self._daemon(broker.kind, "broker", broker.conf, broker.home, broker.place)

    def restart_namesrv(self, namesrv: Namesrv) -> None:
        """Start a stopped or killed name server again, with its settings and port; returns when it is ready."""
        assert not namesrv.process.running
        namesrv.process = self._daemon(namesrv.kind, "namesrv", namesrv.conf)

    def peer(self, command: str, namesrv: Namesrv, **options: object) -> Peer:
        """Start a Java client; `_` in an option's name stands for `-`. See `java/src` for commands and options."""
        args = [command, "--namesrv", namesrv.addr]
        for key, value in options.items():
            if key == "instance":
                # Two clients of one instance name in one JVM would be one client.
                value = f"{value}-{len(self._peers)}"
            args += [f"--{key.replace('_', '-')}", str(value).lower() if isinstance(value, bool) else str(value)]
        return self._start_peer(command, args)

    def begin_mqadmin(self, *args: str) -> Peer:
        """Start the Java mqadmin."""
        return self._start_peer("-".join(["mqadmin", *args[:1]]), ["mqadmin", *args])

    def mqadmin(self, *args: str) -> str:
        """Run the Java mqadmin and return what it printed."""
        peer = self.begin_mqadmin(*args)
        peer.wait()
        return peer.text()

    def _start_peer(self, name: str, args: Sequence[str]) -> Peer:
        peer = self.host.start(name, args)
        self._peers.append(peer)
        return peer

    def stop_all(self) -> None:
        """End what still runs, the newest first: our daemons in good order; all else at once, for Java takes 10 s."""
        failures = []
        for peer in self._peers:
            if not peer.ended:
                peer.close_stdin()
        for process in reversed(self._processes):
            try:
                if process.name.startswith("ours-"):
                    process.stop()
                else:
                    process.kill()
            except AssertionError as failure:
                failures.append(failure)
        try:
            self.check_logs()
        except AssertionError as failure:
            failures.append(failure)
        if failures:
            raise failures[0]

    def check_logs(self) -> None:
        """Raises AssertionError if a daemon of ours has logged a failure of its own since the last check."""
        found = [failure for process in self._processes for failure in self._new_failures(process)]
        assert not found, "\n".join(["a daemon logged:", *found])

    def _new_failures(self, process: Process) -> list[str]:
        """Lines of level CRITICAL and tracebacks, with what follows."""
        if not process.name.startswith("ours-"):
            return []
        lines = process.errors.splitlines()
        begin, self._checked[process.name] = self._checked.get(process.name, 0), len(lines)
        at = (begin + number for number in failures_in(lines[begin:]))
        return ["\n".join([process.name, *lines[number : number + FAILURE_LINES]]) for number in at]

    def report(self) -> str:
        """The last output of each process."""
        return "\n".join(output.tail() for output in [*self._processes, *self._peers])

    def _daemon(
        self,
        kind: Kind,
        role: Literal["namesrv", "broker"],
        conf: Path,
        home: Path | None = None,
        place: Place = HERE,
    ) -> Process:
        main = _MAINS[kind, role]
        home = home or self.java.home
        if kind == "java":
            jvm = [*SMALL, *(f"-D{key}={value}" for key, value in self._tls_settings().items())]
            command = self.java.command(self.scratch, main, "-c", str(conf), home=home, jvm=jvm)
        else:
            given = [f"{key}={value}" for key, value in self._tls_settings().items()]
            options = [part for setting in given for part in ("-o", setting)]
            command = [str(Path(sys.executable).parent / main), "-c", str(conf), *options]
        env = {"ROCKETMQ_HOME": str(home), **place.environment}
        process = self._keep(Process(self._name(f"{kind}-{role}"), [*place.wrapper, *command], self.scratch, env))
        process.wait_line(_READY)
        return process

    def _tls_settings(self) -> dict[str, str]:
        """Settings of ours, and system properties of Java."""
        if self.tls is None:
            return {}
        return {"tls.server.mode": "enforcing", "tls.enable": "true", "tls.config.file": str(self.tls)}

    def _keep(self, process: P) -> P:
        self._processes.append(process)
        return process

    def _name(self, base: str) -> str:
        return f"{base}~{len(self._processes)}"

    def _write_conf(self, name: str, conf: Mapping[str, str]) -> Path:
        path = self.scratch / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in conf.items()))
        return path
