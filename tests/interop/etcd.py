"""An etcd of three members on free ports: the binary on the path (Debian's etcd-server, or built with Go)."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.interop.fleet import HERE, Place
from tests.interop.processes import Process, eventually, free_ports

BINARY = shutil.which("etcd")


class Etcd:
    """Three members that were started, and can be killed, suspended and started again."""

    def __init__(self, scratch: Path, places: Sequence[Place] = (HERE, HERE, HERE)) -> None:
        self._scratch, self._places = scratch, places
        self._ports = [free_ports() for _ in range(3)]
        self.start_all()

    @property
    def endpoints(self) -> str:
        return ";".join(self._url(number) for number in range(3))

    def _url(self, number: int, more: int = 0) -> str:
        return f"http://{self._places[number].address}:{self._ports[number] + more}"

    def _data(self, number: int) -> Path:
        return self._scratch / f"etcd{number}"

    def _start(self, number: int) -> Process:
        assert BINARY is not None
        client, peer = self._url(number), self._url(number, 1)
        names = ",".join(f"m{other}={self._url(other, 1)}" for other in range(3))
        options = {
            "name": f"m{number}",
            "data-dir": str(self._data(number)),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": names,
        }
        command = [*self._places[number].wrapper, BINARY, *(f"--{key}={value}" for key, value in options.items())]
        return Process(f"etcd{number}~{client.rpartition(':')[2]}", command, self._scratch)

    def _wait_for(self, member: Process) -> None:
        eventually(f"{member.name} serves", lambda: "ready to serve client requests" in member.errors, patience_s=60)

    def restart(self, number: int) -> None:
        """Start a member again, or let it go on."""
        if self.members[number].running:
            self.members[number].resume()
        else:
            self.members[number] = self._start(number)
            self._wait_for(self.members[number])

    def back_up(self, folder: Path) -> None:
        """Copy what all members have, while they are suspended for a moment."""
        for member in self.members:
            member.suspend()
        try:
            for number in range(3):
                shutil.copytree(self._data(number), folder / str(number))
        finally:
            for member in self.members:
                member.resume()

    def set_back(self, folder: Path) -> None:
        """Replace what the members have by what they had when it was backed up there, and start them again."""
        self.stop_all()
        for number in range(3):
            shutil.rmtree(self._data(number))
            shutil.copytree(folder / str(number), self._data(number))
        self.start_all()

    def start_all(self) -> None:
        """Start all members again."""
        self.members = [self._start(number) for number in range(3)]
        for member in self.members:
            self._wait_for(member)

    def stop_all(self) -> None:
        for member in self.members:
            member.kill()
