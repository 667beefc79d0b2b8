"""`mq` against daemons that want accounts and take only encrypted connections, from clients with certificates."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.access.acl import write_acl
from tests.daemons.processes import DEADLINE_SECONDS, SOURCE, Process
from tests.remoting.certificates import Authority

pytestmark = pytest.mark.daemons

SECRET = "secret-of-alice"


class Doors:
    """A name server and a broker, and the files to come in with."""

    def __init__(self, tmp_path: Path) -> None:
        self.processes: list[Any] = []
        self.tmp_path = tmp_path
        self.authority = Authority(tmp_path)
        cert, key = self.authority.issue("server", addresses=["127.0.0.1"])
        self.cert, self.key = self.authority.issue("client")
        self.account = tmp_path / "account.yml"
        self.account.write_text(f"accessKey: alice-key\nsecretKey: {SECRET}\n")
        self.account.chmod(0o600)
        write_acl(tmp_path / "home")
        tls = {
            "tls.server.mode": "enforcing",
            "tls.test.mode.enable": "false",
            "tls.server.certPath": cert,
            "tls.server.keyPath": key,
            "tls.server.need.client.auth": "require",
            "tls.server.authClient": "true",
            "tls.server.trustCertPath": self.authority.path,
            "tls.client.certPath": self.cert,
            "tls.client.keyPath": self.key,
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": self.authority.path,
        }
        self.namesrv = self.start("namesrv", tls)
        self.addr = f"127.0.0.1:{self.namesrv.wait_for_port()}"
        small = {"mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20_000, "maxHashSlotNum": 1000,
                 "maxIndexNum": 4000}  # fmt: skip
        own: dict[str, Any] = {
            "namesrvAddr": self.addr,
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": tmp_path / "store",
            "aclEnable": "true",
            "rocketmqHome": tmp_path / "home",
            "autoCreateTopicEnable": "true",
            "diskMaxUsedSpaceRatio": 95,
        }
        self.broker = self.start("broker", tls | small | own)
        self.broker.wait_for_line("boot success")

    def start(self, name: str, settings: dict[str, Any]) -> Process:
        folder = self.tmp_path / name
        folder.mkdir()
        options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
        common = ["-o", "bindAddress=127.0.0.1", "-o", "listenPort=0", "--ports-file", "ports.json"]
        self.processes.append(Process(folder, ["-m", f"mqbroker.daemons.{name}", *common, *options]))
        return self.processes[-1]

    def mq(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mqbroker.cli", *args, "-n", self.addr],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=self.tmp_path,
            env={"PYTHONPATH": SOURCE, **env}, timeout=DEADLINE_SECONDS, check=False,
        )  # fmt: skip

    @property
    def key_ring(self) -> tuple[str, str, str, str, str, str]:
        return ("--tls-ca", self.authority.path, "--tls-cert", self.cert, "--tls-key", self.key)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """With a message in T, for there is no topic before."""
    found = Doors(tmp_path_factory.mktemp("doors"))
    sent = found.mq("pub", "T", "hello", *found.key_ring, "--account-file", str(found.account))
    assert (sent.returncode, sent.stderr) == (0, "")
    yield found
    for process in found.processes:
        process.end()


def test_with_certificate_and_account_messages_go_in_and_out(doors: Doors) -> None:
    env = {"MQ_ACCESS_KEY": "alice-key", "MQ_SECRET_KEY": SECRET, "MQ_TLS_CA": doors.authority.path,
           "MQ_TLS_CERT": doors.cert, "MQ_TLS_KEY": doors.key}  # fmt: skip
    got = doors.mq("sub", "T", "-g", "CG", "--from", "first", "--count", "1", **env)
    assert (got.returncode, got.stdout, got.stderr) == (0, "hello\n", "")


@pytest.mark.parametrize("command", [("pub", "T", "x"), ("sub", "T", "-g", "CG", "--count", "1")])
def test_who_does_not_come_in_is_told_what_is_missing(doors: Doors, command: tuple[str, ...]) -> None:
    ca = ("--tls-ca", doors.authority.path)
    account = ("--account-file", str(doors.account))
    plain = doors.mq(*command, *account)
    assert plain.returncode == 3
    assert "it may take only encrypted ones (ClientTls, --tls of mq)" in plain.stderr
    untrusted = doors.mq(*command, *account, "--tls")
    assert untrusted.returncode == 1
    assert "its certificate is not trusted: " in untrusted.stderr
    assert "--tls-ca of mq" in untrusted.stderr
    nameless = doors.mq(*command, *account, *ca)
    assert "want" in nameless.stderr
    assert "certificate of the client" in nameless.stderr
    for found in (plain, untrusted, nameless):
        assert "Traceback" not in found.stderr


@pytest.mark.parametrize("command", [("pub", "T", "x"), ("sub", "T", "-g", "CG", "--count", "1")])
@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({}, "No accessKey is configured"),
        ({"MQ_ACCESS_KEY": "alice-key", "MQ_SECRET_KEY": "wrong"}, "Check signature failed for accessKey=alice-key"),
        ({"MQ_ACCESS_KEY": "nobody", "MQ_SECRET_KEY": "x"}, "No acl config for nobody"),
    ],
)
def test_an_account_that_is_refused_is_told_why(
    doors: Doors, command: tuple[str, ...], env: dict[str, str], why: str
) -> None:
    found = doors.mq(*command, *doors.key_ring, **env)
    assert found.returncode == 1
    assert why in found.stderr
    assert "The account is that of --account-file, or of MQ_ACCESS_KEY and MQ_SECRET_KEY" in found.stderr


def test_the_secret_is_nowhere(doors: Doors) -> None:
    assert doors.mq("pub", "T", "x", *doors.key_ring, "--account-file", str(doors.account)).returncode == 0
    for process in doors.processes:
        assert SECRET not in process.out + process.err
    for log in Path(doors.tmp_path).rglob("*.log"):
        assert SECRET not in log.read_text()
    assert "MQ_SECRET_KEY" not in os.environ
