"""Finds the Java that Spark would start, with a clear error if there is no suitable one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping

import attrs

from mqbroker.errors import MQError

#: Spark 4 runs on this version of Java and later ones.
VERSION_LEAST = 17
_TIMEOUT_S = 30
_version = re.compile(r'version "(\d+)(?:\.(\d+))?').search

_TODO = (
    f"Install Java {VERSION_LEAST} or later (Debian and Ubuntu: `apt install openjdk-17-jre-headless`, macOS: "
    "`brew install openjdk@17`), and set JAVA_HOME to its directory or put its `java` on the PATH"
)


@attrs.define
class JavaMissing(MQError):
    """Spark has no Java to run on: `what` is wrong, `why`, and `todo` says what to do."""

    what: str
    why: str
    todo: str = _TODO

    def __str__(self) -> str:
        return f"{self.what}: {self.why}. {self.todo}"


def find_java(environ: Mapping[str, str] | None = None) -> int:
    """Return the major version of the Java that Spark will start. Raises JavaMissing.

    As Spark does, it uses JAVA_HOME if that is set, and the first on the PATH otherwise.
    """
    java = _find(os.environ if environ is None else environ)
    try:
        done = subprocess.run(
            [java, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissing("Java does not start", f"{java}: {error}") from None
    return check_version(java, done.returncode, done.stderr + done.stdout)


def check_version(java: str, status: int, output: str) -> int:
    """Parse the output of `java -version`. Raises JavaMissing if it failed, or is too old."""
    found = _version(output)
    if status != 0 or found is None:
        said = output.strip().splitlines()[0] if output.strip() else "nothing"
        raise JavaMissing("Java does not start", f"`{java} -version` ended with {status} and said {said!r}")
    major, minor = int(found[1]), int(found[2] or 0)
    # Up to Java 8 the version was written 1.8.
    version = minor if major == 1 else major
    if version < VERSION_LEAST:
        raise JavaMissing("Java is too old", f"{java} is version {version}, and Spark needs {VERSION_LEAST} or later")
    return version


def _find(environ: Mapping[str, str]) -> str:
    home = environ.get("JAVA_HOME")
    if home:
        java = os.path.join(home, "bin", "java")
        if not os.access(java, os.X_OK):
            raise JavaMissing("Java not found", f"JAVA_HOME is {home}, and there is no bin/java in it that can be run")
        return java
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise JavaMissing("Java not found", "JAVA_HOME is not set, and there is no `java` on the PATH")
    return found
