"""Runs programs in one Spark session. Each line of the input is the path of a program; each line of the output is JSON:
what the program printed, and the traceback with which it ended, or null.

Argument: directory for Spark's own files.
"""

import io
import json
import os
import runpy
import sys
import traceback
from contextlib import redirect_stdout

from tests.spark.session import session_environment, start_session


def main() -> None:
    (scratch,) = sys.argv[1:]
    os.environ.update(session_environment(scratch))
    # The JVM prints to the standard output, too.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    start_session(scratch)
    for line in sys.stdin:
        printed, error = io.StringIO(), None
        with redirect_stdout(printed):
            try:
                runpy.run_path(line.rstrip("\n"), run_name="__main__")
            except BaseException:
                error = traceback.format_exc()
        print(json.dumps([printed.getvalue(), error]), file=answers, flush=True)


if __name__ == "__main__":
    main()
