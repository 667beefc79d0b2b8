"""Every error this package raises on purpose. Knows nothing of sockets, files or Twisted."""

from __future__ import annotations

from collections.abc import Sequence


class MQError(Exception):
    """The root: catching it catches all that this package raises on purpose."""

    #: True where trying again, maybe elsewhere, can help.
    retriable = False


class BadFrame(MQError):
    """Bytes from the network that are not the protocol: the connection is closed."""


class Refused(MQError):
    """A request that is answered with `code` and `remark` instead of being done.

    Servers raise it in a handler; clients raise it when they read such an answer.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code = code
        self.remark = remark

    def __str__(self) -> str:
        return f"CODE: {int(self.code)}  DESC: {self.remark}"


class Unreachable(MQError):
    """No connection to a peer, or it was lost before the answer came."""

    retriable = True


class ConnectionClosed(Unreachable):
    """The connection that carried a request closed before its answer."""


class RequestTimedOut(Unreachable):
    """No answer within the time allowed; the peer may still have done the work."""


class TooManyRequests(MQError):
    """The bound on requests in flight is reached; nothing was sent."""

    retriable = True


class AlreadyStarted(MQError):
    """A service that runs, or has not ended yet, was started."""


class BadTls(MQError):
    """Certificates or keys that cannot be used; the text names the file, and no secret."""


class BadExtension(MQError):
    """An extension that cannot be loaded: its name in the setting `extensions`, and why."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name, self.why = name, why

    def __str__(self) -> str:
        return f"extensions: {self.name}: {self.why}"


class BadExpression(MQError):
    """A filter expression that cannot be read, or compares what cannot be compared; the text says where and why."""


class NotEvaluable(MQError):
    """A filter expression that has no value for one message: a property holds what cannot be compared."""


class StoreError(MQError):
    """The root of what the store raises."""


class StoreDamaged(StoreError):
    """A file of the store does not hold what it must: `path`, byte `offset`, and `why`."""

    def __init__(self, path: str, offset: int, why: str) -> None:
        super().__init__(path, offset, why)
        self.path = path
        self.offset = offset
        self.why = why

    def __str__(self) -> str:
        return f"{self.path} is damaged at byte {self.offset}: {self.why}"


class StoreLocked(StoreError):
    """Another process has the store directory open."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path = path
        self.why = why

    def __str__(self) -> str:
        return f"{self.path} is locked: {self.why}; stop that first: each broker has a directory of its own"


class StoreUnknown(StoreError):
    """A directory that is not a store of this layout: of another system, of a newer version, or none at all."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)
        self.path = path
        self.why = why

    def __str__(self) -> str:
        return f"{self.path} is not a store of 4.9: {self.why}"


class LogMissing(StoreUnknown):
    """A store without its log, which a person must find or give up."""

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


class StoreUnwritable(StoreError):
    """The store takes no more messages: a full disk, a failed fsync, a read-only directory."""


class StoreBusy(StoreError):
    """The store can do something only later, as when what it has is written; nothing is wrong with what it holds."""

    retriable = True


class DiskFull(StoreUnwritable):
    """A disk has too little room to take messages; it ends by itself when there is room again."""


class MessageRefused(StoreError):
    """One message cannot be stored, in whatever state the store is; others can."""


class RecordTooLarge(MessageRefused):
    """A message that does not fit into a segment of the log."""


class MultiDispatchRefused(MessageRefused):
    """A message cannot stand in the queues that its property INNER_MULTI_DISPATCH names."""


class LmqQueuesExceeded(MultiDispatchRefused):
    """A message names new %LMQ% queues, and there are as many as `maxLmqConsumeQueueNum` allows."""


class FlushTimedOut(StoreError):
    """The disk did not confirm a flush within `syncFlushTimeout`."""

    retriable = True


class BadSetting(MQError):
    """A setting that cannot be used: its `key`, the file and line it stands on, and what would be right."""

    def __init__(self, key: str, path: str | None, line: int | None, why: str) -> None:
        super().__init__(key, path, line, why)
        self.key = key
        self.path = path
        self.line = line
        self.why = why

    def __str__(self) -> str:
        where = self.path or "command line"
        if self.line is not None:
            where = f"{where}:{self.line}"
        return f"{where}: {self.key}: {self.why}"


class BadSettings(BadSetting):
    """Several settings that cannot be used: `errors`, of which it says one on each line."""

    def __init__(self, errors: Sequence[BadSetting]) -> None:
        super().__init__(errors[0].key, errors[0].path, errors[0].line, errors[0].why)
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))
