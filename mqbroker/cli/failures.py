"""Failures of a command: one line that says what, why and what to do next, and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from mqbroker.cli.lines import escape_controls
from mqbroker.errors import MQError
from mqbroker.wire.names import split_address

FAILED = 1
INTERRUPTED = 130

ACCOUNT_HINT = (
    "The account is that of --account-file, or of MQ_ACCESS_KEY and MQ_SECRET_KEY; the broker's plain_acl.yml says what"
    " it may do"
)


_HERE = frozenset({"127.0.0.1", "localhost", "::1"})


class Failure(click.ClickException):
    """Ends the command with `message` on standard error, in which servers' words must not reach the terminal as they
    are."""

    exit_code = FAILED

    def format_message(self) -> str:
        return "\n".join(map(escape_controls, self.message.split("\n")))


class NoAnswer(Failure):
    """A name server or broker cannot be reached: the same command may work later, or with another address."""

    exit_code = 3


@contextmanager
def told() -> Iterator[None]:
    """Turn expected errors into a Failure, and Ctrl-C into its exit code; all else is a bug, and shown as one."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except MQError as error:
        raise failure_of(error) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error


def failure_of(error: MQError) -> Failure:
    """The error, with advice if it has none itself."""
    # Imported late: `mq --help` needs no client.
    from mqbroker.client.errors import NameServerUnreachable, SendFailed, TlsFailed, is_about_account
    from mqbroker.errors import ConnectionClosed, Refused, RequestTimedOut, Unreachable

    text = str(error) or type(error).__name__
    if isinstance(error, NameServerUnreachable):
        is_here = all(split_address(addr)[0] in _HERE for addr, _ in error.tried)
        start = "`mq dev` starts one here; " if is_here else ""
        return NoAnswer(f"{text}. {start}-n HOST:PORT or NAMESRV_ADDR names another")
    if isinstance(error, SendFailed):
        causes = [cause for _, _, cause in error.attempts]
        for cause in causes:
            if isinstance(cause, TlsFailed) or is_about_account(cause):
                return failure_of(cause)  # it says what to do
        return (NoAnswer if all(isinstance(cause, Unreachable) for cause in causes) else Failure)(text)
    if isinstance(error, TlsFailed):
        return Failure(text)
    if isinstance(error, (ConnectionClosed, RequestTimedOut)):
        return NoAnswer(text)  # it was reached
    if isinstance(error, Unreachable):
        return NoAnswer(f"{text}. Check that it runs and is reachable from here")
    if isinstance(error, Refused):
        hint = f". {ACCOUNT_HINT}" if is_about_account(error) else ""
        return Failure(f"the broker refuses: {text}{hint}")
    return Failure(text)
