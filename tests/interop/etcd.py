"""An etcd of three members on free ports: the binary on the path (Debian's etcd-server, or built with Go)."""

import json
import shutil
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.interop.fleet import HERE, Place
from tests.interop.processes import Process, eventually, free_ports
from tests.remoting.certificates import Authority

BINARY = shutil.which("etcd")


class Etcd:
    """Three members that were started, and can be killed, suspended and started again.

    :param authority: with it clients show a certificate that it has signed, as members do.
    """

    def __init__(
        self, scratch: Path, places: Sequence[Place] = (HERE, HERE, HERE), authority: Authority | None = None
    ) -> None:
        self._scratch, self._places, self._authority = scratch, places, authority
        if authority is not None:
            self._cert, self._key = authority.issue("etcd", addresses=[place.address for place in places])
        self._ports = [free_ports() for _ in range(3)]
        self.members = [self._start(number) for number in range(3)]
        for member in self.members:
            self._wait_for(member)

    @property
    def endpoints(self) -> str:
        return ";".join(self._url(number) for number in range(3))

    def _url(self, number: int, more: int = 0) -> str:
        scheme = "http" if self._authority is None or more else "https"
        return f"{scheme}://{self._places[number].address}:{self._ports[number] + more}"

    def _start(self, number: int) -> Process:
        assert BINARY is not None
        client, peer = self._url(number), self._url(number, 1)
        names = ",".join(f"m{other}={self._url(other, 1)}" for other in range(3))
        options = {
            "name": f"m{number}",
            "data-dir": str(self._scratch / f"etcd{number}"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": names,
        }
        if self._authority is not None:
            files = {"cert-file": self._cert, "key-file": self._key, "trusted-ca-file": self._authority.path}
            options |= {**files, "client-cert-auth": "true"}
        command = [*self._places[number].wrapper, BINARY, *(f"--{key}={value}" for key, value in options.items())]
        return Process(f"etcd{number}~{client.rpartition(':')[2]}", command, self._scratch)

    def _wait_for(self, member: Process) -> None:
        eventually(f"{member.name} serves", lambda: "ready to serve client requests" in member.errors, patience_s=60)

    def ask(self, number: int, path: str, **body: object) -> Any:
        """Ask a member by its HTTP gateway, without a certificate or an account."""
        request = urllib.request.Request(f"{self._url(number)}/v3/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def enable_accounts(self, username: str, password: str, prefix: str) -> None:
        """Have an account that may use the keys with the prefix alone, beside root."""
        keys = {"key": _text(prefix), "range_end": _text(prefix[:-1] + chr(ord(prefix[-1]) + 1))}
        for name, secret in (("root", "root"), (username, password)):
            self.ask(0, "auth/user/add", name=name, password=secret)
            self.ask(0, "auth/role/add", name=name)
            self.ask(0, "auth/user/grant", user=name, role=name)
        self.ask(0, "auth/role/grant", name=username, perm={"permType": "READWRITE", **keys})
        self.ask(0, "auth/enable")

    @property
    def leader(self) -> int:
        """The index of the member that leads."""
        for number in range(3):
            status = self.ask(number, "maintenance/status")
            if status["leader"] == status["header"]["member_id"]:
                return number
        raise AssertionError("no member leads")

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


def _text(text: str) -> str:
    return b64encode(text.encode()).decode()
