"""What the import of a client loads."""

import json
import subprocess
import sys

import pytest

#: Besides Python's own. Twisted, YAML and what daemons and commands need are not among them.
ALLOWED = {"attr", "attrs", "cython_runtime", "mqbroker", "orjson"}
MODULES_MAX = 330

PROGRAM = """
import json, sys
before = set(sys.modules)
import {module}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize("module", ["mqbroker.client", "mqbroker.client.aio", "mqbroker.client.blocking"])
def test_an_import_loads_no_more_than_it_uses(module: str) -> None:
    program = PROGRAM.format(module=module)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = json.loads(done.stdout)
    others = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert {name for name in others if not name.startswith("_")} <= ALLOWED
    assert len(loaded) <= MODULES_MAX
