"""The rules of the house that are about imports: which package may use which, and where the world comes in."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "mqbroker"

# A module may import what stands below its own level, and its own package; never a sibling.
LEVELS = {
    "errors": 0,
    "repeated_call": 0,
    "kernel": 0,
    "wire": 1,
    "config": 2,
    "filter": 2,
    "remoting": 3,
    "store": 3,
    "access": 4,
    "ha": 4,
    "namesrv": 5,
    "broker": 5,
    "client": 5,
    # The broker in memory, for tests of applications.
    "client/testing": 6,
    "spark": 6,
    "daemons": 7,
    "cli": 8,
}

# Where time, randomness, threads and the reactor are handed to everything else, and what runs in Spark's workers.
DOORS = ("cli", "daemons", "spark")

# Modules that are a door for one thing, each with why.
SMALL_DOORS: dict[str, set[str]] = {
    # The faces of the clients are where programs come in: what they do not pass is taken from the world here, and the
    # cores behind them are handed it. Threads may share a client of the blocking face, and have its listeners.
    "client/deferred.py": {"random.Random", "time.monotonic"},
    "client/aio.py": {"random.Random"},
    "client/aio_net.py": {"time.time"},
    # It runs on a thread, where sockets wait by the clock of the machine.
    "client/address_server.py": {"time.monotonic"},
    "client/blocking.py": {"threading", "concurrent.futures"},
    "client/direct_sends.py": {"threading"},
    "client/thread_clients.py": {"random.Random", "threading", "concurrent.futures"},
    "client/thread_sends.py": {"threading", "concurrent.futures"},
    # Read by any thread, and written by those of listeners.
    "client/counters.py": {"threading"},
    "client/trace.py": {"threading"},
    "client/loop_thread.py": {"threading", "concurrent.futures"},
    "client/thread_calls.py": {"threading", "concurrent.futures"},
    # The broker in memory runs on a thread of its own, and is made by tests, which hand it nothing.
    "client/testing.py": {"threading", "concurrent.futures", "random.Random", "time.time", "time.monotonic"},
    # As long as a test waits, in the time of its machine.
    "client/memory_waits.py": {"time.monotonic", "time.sleep", "twisted.internet.reactor"},
    "store/memory_disk.py": {"time.time"},
    # Files are synced by several threads at a time, for whom the worker waits.
    "store/os_disk.py": {"threading"},
    # Several workers may write the one file at a time.
    "store/checkpoint.py": {"threading"},
    # The worker makes a segment while its owner may give it up.
    "store/segment.py": {"threading"},
    # The faces hand it over: what an administrator sees of the threads of a client's process.
    "client/running_info.py": {"threading"},
}

WORLD = {
    "secrets",
    "threading",
    "concurrent.futures",
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.perf_counter_ns",
    "time.sleep",
    "os.urandom",
    "uuid.uuid1",
    "uuid.uuid4",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "datetime.date.today",
    "twisted.internet.reactor",
}


def modules() -> list[str]:
    return sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


def package_of(module: str) -> str:
    """The package, or the top-level module, that the file `module` belongs to: "wire" for "wire/command.py"."""
    whole = module.removesuffix(".py")
    return whole if whole in LEVELS else whole.partition("/")[0]


def names_used(source: str) -> Iterator[str]:
    """Every dotted name that the source imports, or reaches through what it imported: "os", "os.urandom"."""
    tree = ast.parse(source)
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
                bound[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name
                bound[alias.asname or alias.name] = name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (dotted := _dotted(node)):
            head, _, rest = dotted.partition(".")
            if head in bound:
                yield f"{bound[head]}.{rest}"


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value)):
        return f"{owner}.{node.attr}"
    return None


def upward_imports(package: str, source: str) -> list[str]:
    """What a module of `package` imports from this project without being allowed to."""
    found = []
    for name in names_used(source):
        parts = name.split(".")
        if parts[0] != "mqbroker" or len(parts) < 2 or parts[1] in (package, "__version__"):
            continue
        if LEVELS[parts[1]] >= LEVELS[package]:
            found.append(name)
    return found


def world_uses(source: str) -> list[str]:
    """What a source reads from the world instead of being given it."""
    found = {name for used in names_used(source) for name in WORLD if f"{used}.".startswith(f"{name}.")}
    # The class is named in annotations; a generator of one's own, or the module's hidden one, is the world.
    found |= {used for used in names_used(source) if used.startswith("random.") and used != "random.Random"}
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    found |= {"random.Random" for call in calls if _dotted(call.func) in ("random.Random", "Random")}
    return sorted(found)


def test_each_package_has_a_level_and_no_other() -> None:
    assert {package_of(module) for module in modules()} - {"__init__"} == set(LEVELS)


def test_imports_point_one_way() -> None:
    found = {m: upward_imports(package_of(m), (SOURCE / m).read_text()) for m in modules() if m != "__init__.py"}
    assert len(found) > 100
    assert {module: imports for module, imports in found.items() if imports} == {}


def test_the_world_comes_in_by_the_door() -> None:
    inside = [module for module in modules() if package_of(module) not in DOORS]
    assert len(inside) > 100
    found = {m: set(world_uses((SOURCE / m).read_text())) - SMALL_DOORS.get(m, set()) for m in inside}
    assert {module: uses for module, uses in found.items() if uses} == {}


def test_wire_does_no_input_or_output() -> None:
    outside = {"twisted", "asyncio", "io", "pathlib", "mmap", "os", "subprocess", "select"}
    wire = [module for module in modules() if package_of(module) == "wire"]
    assert len(wire) > 10
    for module in wire:
        used = set(names_used((SOURCE / module).read_text()))
        assert {name.partition(".")[0] for name in used} & outside == set(), module
        assert {name for name in used if name.startswith("socket.")} <= PURE_SOCKET_NAMES, module


PURE_SOCKET_NAMES = {"socket.AF_INET", "socket.AF_INET6", "socket.inet_ntop", "socket.inet_pton"}


@pytest.mark.parametrize(
    ("package", "line", "refused"),
    [
        ("wire", "import mqbroker.remoting.server", ["mqbroker.remoting.server"]),
        ("store", "from mqbroker.remoting import server", ["mqbroker.remoting.server"]),
        ("store", "def f():\n    from mqbroker.broker import x", ["mqbroker.broker.x"]),
        ("broker", "from mqbroker import client", ["mqbroker.client"]),
        ("broker", "from mqbroker.store.log import Log\nfrom mqbroker.broker.offset_table import Offsets", []),
        ("wire", "from mqbroker.errors import MQError\nfrom mqbroker import __version__", []),
    ],
)
def test_the_import_rule_sees(package: str, line: str, refused: list[str]) -> None:
    assert upward_imports(package, line) == refused


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        ("import time\nx = time.time()", ["time.time"]),
        ("import time as t\nx = t.time()", ["time.time"]),
        ("from time import monotonic as now", ["time.monotonic"]),
        ("import datetime\nx = datetime.datetime.now()", ["datetime.datetime.now"]),
        ("from datetime import datetime\nx = datetime.now(tz)", ["datetime.datetime.now"]),
        ("from twisted.internet import reactor", ["twisted.internet.reactor"]),
        ("import twisted.internet.reactor", ["twisted.internet.reactor"]),
        ("from os import urandom", ["os.urandom"]),
        ("import random\nx = random.random()", ["random.random"]),
        ("from random import choice", ["random.choice"]),
        ("import random\ndef f(rng: random.Random) -> None: ...", []),
        ("import random\nrng = random.Random()", ["random.Random"]),
        ("import threading", ["threading"]),
        ("import time\nx = time.strftime('%Y', t)\ny = clock.time()", []),
        ("from twisted.internet.interfaces import IReactorTime", []),
    ],
)
def test_the_world_rule_sees(source: str, uses: list[str]) -> None:
    assert world_uses(source) == uses
