"""What the import of a client loads."""

import json
import subprocess
import sys

import pytest

#: Besides Python's own. YAML and what daemons and commands need are not among them.
ALLOWED = {"attr", "attrs", "cython_runtime", "mqbroker", "orjson"}
#: Twisted, and what it loads itself where it is installed.
TWISTED = {
    "OpenSSL", "constantly", "cryptography", "hyperlink", "idna", "incremental", "service_identity", "twisted",
    "typing_extensions", "zope",
}  # fmt: skip
#: Parts of the package that no client is made of.
SERVERS = {"access", "broker", "cli", "daemons", "ha", "namesrv", "spark", "store"}
MODULES_MAX = {"deferred": 560}

PROGRAM = """
import json, sys
before = set(sys.modules)
import {module}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize("module", ["client", "client.aio", "client.blocking", "client.deferred"])
def test_an_import_loads_no_more_than_it_uses(module: str) -> None:
    program = PROGRAM.format(module=f"mqbroker.{module}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = json.loads(done.stdout)
    others = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    allowed = ALLOWED | (TWISTED if module == "client.deferred" else set())
    assert {name for name in others if not name.startswith("_")} <= allowed
    assert {name.split(".")[1] for name in loaded if name.startswith("mqbroker.")} & SERVERS == set()
    assert len(loaded) <= MODULES_MAX.get(module.partition(".")[2], 330)
