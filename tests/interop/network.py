"""A network of its own for daemons: a namespace and an address for each host, a bridge between them, and packets that
are dropped by rules in the host's namespace.

The bridge has a namespace, too, so that rules of the machine do not apply to what it passes on; a link leads from it to
the namespace of the tests, which has the address `NETWORK.1`.
"""

import os
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from tests.daemons.permits import need

Direction = Literal["both", "in", "out"]

_NAMES = Path("/run/netns")
_PREFIX = "mqbroker-"
#: Packets in these directions are dropped.
_CHAINS: dict[Direction, tuple[str, ...]] = {"both": ("input", "output"), "in": ("input",), "out": ("output",)}


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class Host:
    """A namespace that has `address` and the loopback."""

    def __init__(self, namespace: str, address: str) -> None:
        self._namespace, self.address = namespace, address
        #: Runs a command inside.
        self.wrapper = ["nsenter", f"--net={_NAMES / namespace}"]

    def cut_off(self, from_hosts: Iterable["Host"] | None, direction: Direction) -> None:
        """Drop the packets that are exchanged with other hosts, all if None; those that come `in` or go `out` only."""
        others = ", ".join(other.address for other in from_hosts) if from_hosts is not None else ""
        chains = []
        for chain in _CHAINS[direction]:
            side, interface = ("saddr", "iifname") if chain == "input" else ("daddr", "oifname")
            match = f"ip {side} {{ {others} }}" if others else f'{interface} "eth0"'
            chains.append(f"chain {chain} {{ type filter hook {chain} priority 0; {match} drop; }}")
        _run(*self._nft, "table inet cut {\n" + "\n".join(chains) + "\n}")

    def heal(self) -> None:
        """Let all packets pass again."""
        _run(*self._nft, "table inet cut; delete table inet cut")

    @property
    def _nft(self) -> list[str]:
        return [*self.wrapper, "nft"]


class Network:
    """Hosts that reach each other; `address` is that of the tests, for them. Skips where it cannot be made."""

    def __init__(self, count: int) -> None:
        name = f"{_PREFIX}{os.getpid()}"
        need("network namespaces", ["unshare", "-n", "true"])
        need("packet filters in network namespaces", ["unshare", "-n", "nft", "add table inet cut"])
        need("bridges between network namespaces", ["unshare", "-n", "ip", "link", "add", "bridge", "type", "bridge"])
        remove_left_behind()
        # Of the addresses for tests of networks (RFC 2544), so that it is nobody's.
        prefix = f"198.18.{os.getpid() % 256}"
        self.address = f"{prefix}.1"
        self.hosts = [Host(f"{name}-{number}", f"{prefix}.{number + 10}") for number in range(count)]
        with ExitStack() as made:
            self._make_bridge(f"{name}-bridge", made)
            for host in self.hosts:
                self._make_host(host, f"{name}-bridge", made)
            self._made = made.pop_all()

    def _make_bridge(self, bridge: str, made: ExitStack) -> None:
        made.callback(_remove, bridge)
        link = f"mq{os.getpid()}"
        need("network namespaces with names", ["ip", "netns", "add", bridge])
        _run("ip", "-n", bridge, "link", "add", "bridge", "up", "type", "bridge")
        pair = ["type", "veth", "peer", "name", "tests", "netns", bridge]
        need("links between network namespaces", ["ip", "link", "add", link, *pair])
        made.callback(subprocess.run, ["ip", "link", "delete", link], capture_output=True, check=False)
        _run("ip", "-n", bridge, "link", "set", "tests", "up", "master", "bridge")
        _run("ip", "address", "add", f"{self.address}/24", "dev", link)
        _run("ip", "link", "set", link, "up")

    def _make_host(self, host: Host, bridge: str, made: ExitStack) -> None:
        namespace = host._namespace
        end = f"to-{host.address.rpartition('.')[2]}"
        made.callback(_remove, namespace)
        _run("ip", "netns", "add", namespace)
        _run("ip", "-n", namespace, "link", "set", "lo", "up")
        _run("ip", "link", "add", "eth0", "netns", namespace, "type", "veth", "peer", "name", end, "netns", bridge)
        _run("ip", "-n", bridge, "link", "set", end, "up", "master", "bridge")
        _run("ip", "-n", namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
        _run("ip", "-n", namespace, "link", "set", "eth0", "up")

    def remove(self) -> None:
        """Remove all of it; the daemons inside have ended."""
        self._made.close()


def _remove(namespace: str) -> None:
    """Its links, addresses and rules go with it."""
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def remove_left_behind() -> None:
    """Remove the namespaces of runs that were killed."""
    for path in _NAMES.glob(f"{_PREFIX}*") if _NAMES.is_dir() else ():
        pid = path.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", pid).exists():
            _remove(path.name)
