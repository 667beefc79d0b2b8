"""The Go client with our daemons: what it sends comes back, and its end is nothing that they report.

Its module is fetched by Go. Where there is no Go, or no module, the test is skipped, with the reason.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop.fleet import Fleet
from tests.interop.processes import Process

PROGRAM = Path(__file__).parent / "go"
BUILD_S_MAX = 600
COUNT = 200


@pytest.fixture(scope="session")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, built."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no `go` on the PATH: install Go 1.21 or later to test its client")
    program = tmp_path_factory.mktemp("go") / "client"
    fetched = subprocess.run([go, "mod", "download"], cwd=PROGRAM, capture_output=True, text=True, timeout=BUILD_S_MAX)
    if fetched.returncode:
        pytest.skip(f"Go cannot fetch the modules of its client: {fetched.stderr[-500:]}")
    subprocess.run([go, "build", "-o", program, "."], cwd=PROGRAM, check=True, timeout=BUILD_S_MAX)
    return program


def test_the_go_client_sends_consumes_and_ends(fleet: Fleet, go_client: Path, topic: str) -> None:
    namesrv = fleet.namesrv("ours")
    broker = fleet.broker("ours", namesrv)
    before = len(broker.process.errors.splitlines())
    for run in range(2):
        client = Process(f"go-client-{run}", [str(go_client), namesrv.addr, topic, str(COUNT)], fleet.scratch)
        status = client.wait()
        assert (status, client.lines[-1:]) == (0, ["done"]), client.errors[-2000:]
    # Each life of the client ends with connections that are closed while responses are under way.
    assert [line for line in broker.process.errors.splitlines()[before:] if " INFO " not in line] == []
