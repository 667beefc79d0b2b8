"""How-to pages on running daemons: followed as they stand, with what they print."""

import importlib.util
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mqbroker.daemons.broker import BrokerConsoleOptions
from tests.daemons.processes import SOURCE
from tests.sessions import follow, reader_environment, steps

FOLDER = Path(__file__).parent.parent.parent / "docs" / "howto"


@pytest.mark.daemons
@pytest.mark.parametrize(
    ("page", "typed"),
    [
        ("run", 10),
        ("keep-messages", 1),
        ("logs", 10),
        ("change-settings", 6),
        ("back-up", 15),
        ("access", 14),
        ("full-disk", 13),
        ("master-and-slave", 52),
    ],
)
def test_a_how_to_for_daemons(tmp_path: Path, page: str, typed: int) -> None:
    environment = reader_environment(tmp_path, PYTHONPATH=SOURCE)
    assert follow([FOLDER / f"{page}.rst"], tmp_path / "work", environment) == typed


@pytest.mark.daemons
def test_a_group_is_set_up(tmp_path: Path) -> None:
    missing = [program for program in ("etcd", "curl") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"there is no {' and no '.join(missing)}")
    environment = reader_environment(tmp_path, PYTHONPATH=SOURCE)
    assert follow([FOLDER / "set-up-a-group.rst"], tmp_path / "work", environment) == 25


def test_the_unit_of_systemd_is_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    [unit] = [step for step in steps(FOLDER / "systemd.rst") if step.file == "mqbroker.service"]
    path = tmp_path / unit.file
    path.write_text(unit.text.replace("/opt/mqbroker/bin/mqbroker", "/bin/true").replace("User=mqbroker\n", ""))
    command = ["systemd-analyze", "verify", "--man=no", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, [line for line in ended.stderr.splitlines() if unit.file in line]) == (0, [])
    options = re.findall(r"^Exec\w+=/opt/mqbroker/bin/mqbroker (.+)$", unit.text, re.MULTILINE)
    for line in options:
        known = {f"--{name.rstrip('=')}" for name in BrokerConsoleOptions().longOpt} | {"-c"}
        assert {word for word in line.split() if word.startswith("-")} <= known
    assert len(options) == 2


@pytest.mark.daemons
def test_what_one_sees_where_something_is_missing(tmp_path: Path) -> None:
    page = " ".join((FOLDER / "index.rst").read_text().partition("Where something is missing\n---")[2].split())
    scripts = Path(sys.executable).parent
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        taken, closed = (str(one.getsockname()[1]) for one in (server, silent))
        seen: dict[str, list[str]] = {
            "No name server answers": ["mq", "pub", "-n", f"127.0.0.1:{closed}", "orders", "one"],
            "port 9876 on 127.0.0.1, for the name server, is taken": ["mq", "dev", "--port", taken],
            "cannot listen on": ["mqnamesrv", "-o", "bindAddress=127.0.0.1", "-o", f"listenPort={taken}"],
            "stop what has the port, or set another listenPort": ["mqnamesrv", "-o", f"listenPort={taken}"],
        }
        environment = reader_environment(tmp_path, PYTHONPATH=SOURCE)
        if importlib.util.find_spec("pyspark"):
            # With a shell for Spark's script, and no Java.
            (tmp_path / "bin").mkdir()
            for program in ("bash", "dirname", "env", "python"):
                (tmp_path / "bin" / program).symlink_to(shutil.which(program) or sys.executable)
            seen["JAVA_GATEWAY_EXITED"] = ["python", str(FOLDER.parent.parent / "examples" / "spark_write.py")]
        for shown, (program, *words) in seen.items():
            without_java = {"PATH": str(tmp_path / "bin"), "JAVA_HOME": ""} if program == "python" else {}
            ended = subprocess.run(
                [scripts / program, *words],
                cwd=tmp_path,
                env=environment | without_java,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert ended.returncode != 0, (words, ended)
            assert shown.replace("9876", taken) in ended.stderr + ended.stdout, (words, ended)
            assert f"``{shown}``" in page
    assert "the hot path runs in Python, several times slower than compiled" in page
