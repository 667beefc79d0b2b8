"""The command line that the daemons share, in their console scripts and under twistd alike.

The short forms -c, -n, -p and -m, and their long ones, are those of the Java system.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from twisted.python import usage

from mqbroker import __version__
from mqbroker.config import LogLevel, show_settings
from mqbroker.errors import BadSetting


class DaemonOptions(usage.Options):
    """Parses a command line and loads the settings it names, as `settings`.

    A wrong setting is a SystemExit with one line that says where it was set and what would be valid.
    """

    #: Set by each daemon: (path, overrides, *, environ, warn) -> settings.
    load: Callable[..., Any]

    _OWN_FILES: tuple[str, ...] = ("ports-file",)
    #: Whether a daemon says what is advised about its settings.
    gives_advice = True
    #: The log level that overrides the settings', if any.
    log_level: LogLevel | None = None

    optFlags = [
        ["printConfigItem", "p", "Print all settings and exit"],
        ["printImportantConfig", "m", "Print the important settings and exit"],
        ["check", None, "Check the settings, and the certificates and accounts they name, and exit"],
    ]
    optParameters = [
        ["config", "c", None, "The settings file, with the syntax and keys of the Java system"],
        ["ports-file", None, None, "Write the ports to this file as JSON once they are open"],
        ["log-format", None, "text", "text, or json for one JSON object per line"],
    ]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.overrides: list[tuple[str, str]] = []
        self.warnings: list[str] = []
        self.settings: Any = None
        #: What relative paths are relative to; twistd may take the process elsewhere.
        self.directory = os.getcwd()

    def opt_version(self) -> None:
        """Print the version and exit"""
        print(f"mqbroker {__version__}")  # noqa: T201
        raise SystemExit(0)

    def opt_option(self, text: str) -> None:
        """Set one setting, as key=value; overrides file and environment; may be repeated"""
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise usage.UsageError(f"-o {text}: write key=value")
        self.overrides.append((key.strip(), value))

    opt_o = opt_option

    def opt_h(self) -> None:
        """The same as --help"""
        self.opt_help()  # type: ignore[no-untyped-call]

    def opt_configFile(self, path: str) -> None:
        """The same as --config"""
        self["config"] = path

    def parseArgs(self, *rest: str) -> None:  # noqa: N802
        if rest:
            raise usage.UsageError(f"{rest[0]!r} is not expected; give a file with -c, and settings with -o key=value")

    def postOptions(self) -> None:
        if self["log-format"] not in ("text", "json"):
            raise usage.UsageError(f"--log-format {self['log-format']}: text or json")
        self.settings = self.load_settings(self.warnings.append)
        for name in ("config", "ports-file"):  # twistd's --rundir may take the process elsewhere
            if self[name] is not None:
                self[name] = os.path.abspath(self[name])
        if self["printConfigItem"] or self["printImportantConfig"]:
            important_only = not self["printConfigItem"]
            for warning in self.warnings:
                sys.stderr.write(f"warning: {warning}\n")
            _print("\n".join(show_settings(self.settings, important_only=important_only)))
            raise SystemExit(0)
        if self["check"]:
            self._check()

    def _check(self) -> NoReturn:
        from mqbroker.daemons.checks import check

        faults, warnings = check(self.settings, self.own_files())
        for warning in self.warnings + warnings:
            print(f"warning: {warning}")  # noqa: T201
        if faults:
            raise SystemExit("\n".join(faults))
        print("the settings are good")  # noqa: T201
        raise SystemExit(0)

    def own_files(self) -> dict[str, str]:
        """Paths of files of this process, such as the pid file, by option."""
        return {f"--{name}": self[name] for name in self._OWN_FILES if self[name] is not None}

    def load_settings(self, warn: Callable[[str], None]) -> Any:
        """The present settings from file, environment and options. SystemExit if one is wrong."""
        try:
            return type(self).load(self["config"], self.overrides, environ=os.environ, warn=warn)
        except BadSetting as error:
            raise SystemExit(str(error)) from None


def _print(text: str) -> None:
    """Print, to a pipe whose reader may close it early."""
    try:
        print(text, flush=True)  # noqa: T201
    except BrokenPipeError:
        # Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


class ConsoleOptions(DaemonOptions):
    """Options only of console scripts: twistd has its own for the same purposes."""

    _OWN_FILES = ("ports-file", "log-file", "pid-file")

    optParameters = [
        ["log-level", None, None, "debug, info, warn or error; overrides the setting logLevel"],
        ["log-file", None, None, "Write the log to this file instead of standard error; SIGUSR1 reopens it"],
        ["pid-file", None, None, "Write the process id to this file"],
    ]

    def postOptions(self) -> None:
        if self["log-level"] not in (None, *LogLevel):
            raise usage.UsageError(f"--log-level {self['log-level']}: one of {', '.join(LogLevel)}")
        self.log_level = LogLevel(self["log-level"]) if self["log-level"] is not None else None
        super().postOptions()
