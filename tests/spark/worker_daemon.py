"""Spark's daemon of Python workers, which imports what each worker needs before it forks them.

Spark's own imports nothing, in case a library starts threads that a fork does not have, so that each worker takes half
a second of CPU time for it. Arrow's only thread is one of its allocator, which knows forks. Workers that import all by
themselves are in test_bundle.py.
"""

import gc
import os

# Or NumPy starts threads, too.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

from mqbroker.spark import api, connections, decode, packing, reading, writing  # noqa: F401

if api.HAS_SOURCES:
    from mqbroker.spark import sink, source  # noqa: F401

if __name__ == "__main__":
    # Workers collect garbage after each task.
    gc.freeze()
    manager()
