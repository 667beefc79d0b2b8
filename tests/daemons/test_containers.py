"""The image and the Compose file in contrib/: what they name exists and fits together, and the image's command runs as
a container runs it: the first process of its namespace, without a terminal, as another user than root."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from mqbroker.config import load_broker_settings, load_namesrv_settings
from tests.daemons.permits import need
from tests.daemons.processes import SOURCE, wait_for

ROOT = Path(__file__).parent.parent.parent
CONTRIB = ROOT / "contrib"
ADDRESS = "192.0.2.10"
INSTRUCTIONS = {"FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "CMD"}


def instructions() -> list[tuple[str, str]]:
    """Those of the Containerfile, with their arguments."""
    lines = [line for line in (CONTRIB / "Containerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def last(name: str) -> str:
    return [rest for each, rest in instructions() if each == name][-1]


def services() -> dict[str, Any]:
    return yaml.safe_load((CONTRIB / "compose.yaml").read_text())["services"]


def broker_environment() -> dict[str, str]:
    """What Compose makes of the file's, where BROKER_ADDRESS is set."""
    given: dict[str, str] = services()["broker"]["environment"]
    return {name: re.sub(r"\$\{BROKER_ADDRESS:\?[^}]+\}", ADDRESS, value) for name, value in given.items()}


def test_the_image_is_of_known_instructions_and_runs_as_a_user_without_rights() -> None:
    assert {name for name, _ in instructions()} == INSTRUCTIONS
    assert last("USER") != "root"
    assert f"useradd --system --uid 10911 --home-dir {last('VOLUME')} " in "".join(rest for _, rest in instructions())
    assert last("STOPSIGNAL") == "SIGTERM"
    assert shlex.join(json.loads(last("CMD"))) == "mqbroker -c /etc/mqbroker/broker.conf"


def ignored(path: str) -> bool:
    """Whether the file of what is left out of the build leaves a path out; the last pattern that matches decides."""
    found = False
    for line in (CONTRIB / "Containerfile.dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        if line and not line.startswith("#") and any(fnmatch(part, pattern) for part in (path, *path.split("/"))):
            found = not line.startswith("!")
    return found


def test_the_build_is_given_what_the_package_is_made_of() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    shared = " ".join(setup["options.data_files"].values()).split()
    packages = [each.partition(".")[0] for each in setup["options.packages.find"]["include"].split()]
    needed = ["setup.py", "setup.cfg", "pyproject.toml", "LICENSE", *shared, *packages]
    assert [path for path in needed if ignored(path.partition("/")[0])] == []
    assert [path for path in ("tests", ".git", "bench", ".tox", "mq-data") if not ignored(path)] == []
    sources = [word for rest in (rest for name, rest in instructions() if name == "COPY") for word in rest.split()[:-1]]
    copied = [word for word in sources if not word.startswith(("--", "/")) and word != "."]
    assert copied == ["contrib/broker.conf", "contrib/namesrv.conf"]
    assert all((ROOT / word).is_file() for word in copied)


def test_the_settings_of_the_image_load_without_a_warning_and_keep_all_in_the_volume() -> None:
    warnings: list[str] = []
    broker = load_broker_settings(str(CONTRIB / "broker.conf"), environ=broker_environment(), warn=warnings.append)
    namesrv = load_namesrv_settings(str(CONTRIB / "namesrv.conf"), warn=warnings.append)
    assert warnings == []
    assert broker.broker_ip1 == ADDRESS
    volume = f"{last('VOLUME')}/"
    for path in (broker.store.store_path_root_dir, namesrv.kv_config_path, namesrv.config_store_path):
        assert path.startswith(volume)
    ports = {broker.server.listen_port + step for step in (-2, 0, 1)} | {namesrv.server.listen_port}
    assert set(map(int, last("EXPOSE").split())) == ports


def test_compose_runs_both_with_ports_volumes_and_time_to_stop() -> None:
    file = yaml.safe_load((CONTRIB / "compose.yaml").read_text())
    exposed = set(last("EXPOSE").split())
    for service in file["services"].values():
        assert (CONTRIB / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        # Under another number a broker could not be reached: it registers the one that it listens on.
        inside_and_outside = [port.split(":") for port in service["ports"]]
        assert all(inside == outside and inside in exposed for inside, outside in inside_and_outside)
        [[volume, place]] = [each.split(":") for each in service["volumes"]]
        assert volume in file["volumes"]
        assert place == last("VOLUME")
        assert service["init"] is True
    assert file["services"]["broker"]["stop_grace_period"] == "60s"
    assert file["services"]["namesrv"]["command"] == ["mqnamesrv", "-c", "/etc/mqbroker/namesrv.conf"]


#: The volume, in a mount namespace; then the command, as the first process of another namespace of processes.
CONTAINER = (
    "mount -t tmpfs tmpfs /var/lib && install -d -o $OWNER -g $OWNER /var/lib/mqbroker && ip link set lo up "
    "&& exec unshare --pid --fork --mount-proc --kill-child=KILL "
    # It may read all, so that it can be an environment below root's home.
    "setpriv --reuid=10911 --regid=10911 --clear-groups --no-new-privs "
    "--inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search "
    'sh -c \'cd /var/lib/mqbroker && exec "$@"\' sh "$@"'
)
SPACES = ("unshare", "--net", "--mount", "sh", "-c")


class Container:
    """The image's command."""

    def __init__(self, folder: Path, command: list[str], environment: dict[str, str]) -> None:
        self._out, self._err = folder / "out", folder / "err"
        [program, *arguments] = command
        arguments = [each.replace("/etc/mqbroker", str(CONTRIB)) for each in arguments]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*SPACES, CONTAINER, "sh", str(Path(sys.executable).parent / program), *arguments],
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": SOURCE,
                    "HOME": last("VOLUME"),
                    "OWNER": "10911",
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def printed(self) -> str:
        return self._out.read_text() + self._err.read_text()

    def first(self) -> int:
        """The first process of the namespace, as it is called outside of it: unshare's only child."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.fixture
def permitted() -> None:
    command = [sys.executable, "-c", f"open({str(CONTRIB / 'broker.conf')!r})"]
    need("a container of namespaces", ["env", "OWNER=10911", *SPACES, CONTAINER, "sh", *command])


@pytest.fixture
def container(permitted: None, tmp_path: Path) -> Iterator[Any]:
    started: list[Container] = []

    def start(command: list[str], **environment: str) -> Container:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Container(folder, command, environment))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


@pytest.mark.daemons
def test_check_accepts_the_settings_of_the_image(container: Any) -> None:
    for command in (json.loads(last("CMD")), services()["namesrv"]["command"]):
        environment = broker_environment() if command[0] == "mqbroker" else {}
        checked = container([*command, "--check"], **environment)
        assert checked.process.wait(60) == 0, checked.printed
        assert checked.printed.endswith("the settings are good\n")


@pytest.mark.daemons
def test_a_volume_of_another_owner_is_named(container: Any) -> None:
    broker = container(json.loads(last("CMD")), **broker_environment(), OWNER="0")
    assert broker.process.wait(60) == 1
    assert re.search(rf"^mqbroker: {last('VOLUME')}\S*: Permission denied", broker.printed, re.MULTILINE), (
        broker.printed
    )


@pytest.mark.daemons
def test_the_first_process_of_a_container_stops_in_order_at_sigterm(container: Any) -> None:
    """The kernel drops a signal to the first process that it has no handler for."""
    commands = (json.loads(last("CMD")), services()["namesrv"]["command"])
    for command, environment in zip(commands, (broker_environment(), {}), strict=True):
        daemon = container(command, **environment)
        wait_for(lambda d=daemon: "boot success" in d.printed or d.process.poll() is not None, "boot success")
        assert re.search(r"^NSpid:.*\t1$", Path(f"/proc/{daemon.first()}/status").read_text(), re.MULTILINE), (
            daemon.printed
        )
        os.kill(daemon.first(), signal.SIGTERM)
        assert daemon.process.wait(60) == 0, daemon.printed
        assert "Traceback" not in daemon.printed
