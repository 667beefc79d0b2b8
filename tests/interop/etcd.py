"""An etcd of three members on free ports: the binary on the path (Debian's etcd-server, or built with Go)."""

import shutil
from pathlib import Path

from tests.interop.processes import Process, eventually, free_ports

BINARY = shutil.which("etcd")


class Etcd:
    """Three members that were started, and can be killed, suspended and started again."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._ports = [free_ports() for _ in range(3)]
        self.members = [self._start(number) for number in range(3)]
        for member in self.members:
            self._wait_for(member)

    @property
    def endpoints(self) -> str:
        return ";".join(f"http://127.0.0.1:{port}" for port in self._ports)

    def _start(self, number: int) -> Process:
        assert BINARY is not None
        client, peer = (f"http://127.0.0.1:{self._ports[number] + more}" for more in (0, 1))
        names = ",".join(f"m{other}=http://127.0.0.1:{port + 1}" for other, port in enumerate(self._ports))
        options = {
            "name": f"m{number}",
            "data-dir": str(self._scratch / f"etcd{number}"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": names,
        }
        command = [BINARY, *(f"--{key}={value}" for key, value in options.items())]
        return Process(f"etcd{number}~{client.rpartition(':')[2]}", command, self._scratch)

    def _wait_for(self, member: Process) -> None:
        path = next(self._scratch.glob(f"{member.name}.stderr"))
        eventually(f"{member.name} serves", lambda: "ready to serve client requests" in path.read_text(), patience_s=60)

    def restart(self, number: int) -> None:
        """Start a member again, or let it go on."""
        if self.members[number].running:
            self.members[number].resume()
        else:
            self.members[number] = self._start(number)
            self._wait_for(self.members[number])

    def stop_all(self) -> None:
        for member in self.members:
            member.kill()
