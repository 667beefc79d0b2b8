"""Archives of loaded classes (CDS), so that a JVM of the tests starts in a third of the time.

A JVM loads the same thousands of classes each time: one run writes them into a file, and all others map that.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def archive_options(archive: Path, make: Callable[[str], None]) -> str:
    """The options of a JVM that uses `archive`; the first caller has it written by `make`.

    `make` runs a JVM with the option that it is given, to its end. A Java that cannot write an archive leaves an empty
    file, and no options.
    """
    try:
        with open(f"{archive}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.exists():
                made = archive.with_name(f"{archive.name}.{os.getpid()}")
                try:
                    make(f"-XX:ArchiveClassesAtExit={made}")
                    made.touch()
                    made.rename(archive)
                finally:
                    made.unlink(missing_ok=True)
    except OSError:  # such as a directory that is not to be written to
        return ""
    # An archive of other classes is passed over, without a word on the output that tests read.
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable" if archive.stat().st_size else ""
