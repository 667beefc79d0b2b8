"""The garbage collector of a daemon."""

import gc
import subprocess
import sys

from mqbroker.daemons.process import YOUNGEST

# In a process of its own: what it does cannot be undone for objects that die meanwhile.
PROGRAM = """
import gc
from mqbroker.daemons.process import freeze_collector

cycle = []
cycle.append(cycle)
del cycle
freeze_collector()
print(gc.get_freeze_count() > 1000, len(gc.get_objects()) < 100, gc.get_threshold(), gc.isenabled(), gc.collect())
"""


def test_what_is_there_stays_and_what_comes_is_collected() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    thresholds = (YOUNGEST, *gc.get_threshold()[1:])
    assert done.stdout == f"True True {thresholds} True 0\n"
