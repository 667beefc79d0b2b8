"""The Java 4.9.7 system on this machine: fetched by Maven into a cache, and the command lines that start it.

The cache is `$MQBROKER_JAVA_CACHE`, or `mqbroker/java-4.9.7` below `$XDG_CACHE_HOME` (`~/.cache`).
Knows nothing of mqbroker itself.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import attrs

PROJECT = Path(__file__).parent / "java"

# What 4.9.7 reaches into on Java 17; ByteBuffer cleaning fails without them.
_OPENS = [
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
]

# Short-lived processes with little to do: a fast start counts for more than fast code.
SMALL = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class JavaMissing(Exception):
    """Java, Maven or what Maven fetches is not to be had; the message says which and what to do."""


@attrs.frozen
class JavaSystem:
    """The jars and the compiled peer; `home` holds the empty log configurations that the daemons want to find."""

    java: str
    cache: Path
    classes: Path

    @property
    def home(self) -> Path:
        return self.cache / "home"

    def command(
        self, scratch: Path, main: str, *args: str, jvm: Sequence[str] = SMALL, home: Path | None = None
    ) -> list[str]:
        """The command line for class `main`; whatever it writes of its own accord goes below `scratch`."""
        return [
            self.java,
            *_OPENS,
            *jvm,
            "-XX:-UsePerfData",
            f"-Duser.home={scratch}",
            f"-Djava.io.tmpdir={scratch}",
            f"-Drocketmq.client.logRoot={scratch}/logs",
            f"-Drocketmq.home.dir={home or self.home}",
            "-cp",
            f"{self.classes}{os.pathsep}{self.cache}/lib/*",
            main,
            *args,
        ]


def java_system() -> JavaSystem:
    """Fetch and compile what is not in the cache yet. Raises JavaMissing."""
    java, maven = _program("java"), shutil.which("mvn")
    cache = _cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    # Trees with other sources may use the same cache at the same time.
    classes = cache / f"classes-{_project_hash()[:16]}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = classes / "built"
        if not built.exists():
            if maven is None:
                raise JavaMissing("mvn is not on the PATH; install Maven 3.6 or later")
            _build(maven, cache, classes)
            built.touch()
    return JavaSystem(java, cache, classes)


def _program(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=f"{home}/bin") if home else shutil.which(name)
    if found is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH, and JAVA_HOME is not set"
        raise JavaMissing(f"no {name} {where}; install a JDK of version 17 or later")
    return found


def _cache_dir() -> Path:
    if path := os.environ.get("MQBROKER_JAVA_CACHE"):
        return Path(path).absolute()
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches).absolute() / "mqbroker" / "java-4.9.7"


def _project_hash() -> str:
    digest = hashlib.sha256()
    for path in [PROJECT / "pom.xml", *sorted(PROJECT.glob("src/**/*.java"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _build(maven: str, cache: Path, classes: Path) -> None:
    shutil.rmtree(classes, ignore_errors=True)
    pom, places = str(PROJECT / "pom.xml"), [f"-Dcache={cache}", f"-Dclasses={classes}"]
    command = [maven, "-q", "-B", "-f", pom, *places, "compile"]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
    if result.returncode != 0:
        raise JavaMissing(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    conf = cache / "home" / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in ("logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml"):
        (conf / name).write_text("<configuration/>\n")
