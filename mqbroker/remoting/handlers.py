"""The dispatch table of request handlers, by request code.

Most handlers are methods marked with `@answers(code)` and registered by `HandlerTable.serve`: they take a `Call`, with
the header decoded by the class that the request table has for the code, and return the response's header or body. The
lower-level `register` takes a function of (request, connection) that returns the response as a command, a Deferred or
coroutine of it, or None if it responds later through the connection. Exceptions become responses: Refused with its code
and remark, others SYSTEM_ERROR. A batch handler takes all requests of its code from one read, as plain tuples, and
returns the bytes of all their responses: for the few codes with most of the traffic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Generic, NamedTuple, TypeVar, cast

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import Attribute, Interface

from mqbroker.errors import MQError, Refused
from mqbroker.wire.body import Body
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.headers import Header, decode_header
from mqbroker.wire.requests import REQUESTS

log = Logger()

#: Some ms of work for the fastest batch handler, which delays other connections as long.
RUN_MAX = 256

#: The remark that a peer gets for an internal error.
UNEXPECTED_ERROR = "the request failed with an unexpected error: see the log of the server"


class IConnection(Interface):
    """The connection to a peer, as handlers see it."""

    remote_addr: str = Attribute("The peer as 'address:port'.")
    remote_host: bytes = Attribute("The peer's address and port as records keep them: 8 bytes, or 20 for IPv6.")
    peer_version: int = Attribute("For batch handlers: the version the peer's run gives, unchecked; 0 where none.")
    closed: bool = Attribute("True once the connection is gone.")
    last_active: float = Attribute("Seconds on the clock when bytes last came, or were sent.")
    has_room: bool = Attribute("False while the peer does not read what it was sent.")

    def send(command: RemotingCommand) -> None:
        """Send a command; nothing happens on a closed connection."""

    def write(data: bytes) -> None:
        """Send whole encoded frames."""

    def invoke(command: RemotingCommand, timeout_ms: int) -> Deferred[RemotingCommand]:
        """Send a request; fires with its response, fails with RequestTimedOut or ConnectionClosed."""

    def invoke_oneway(command: RemotingCommand) -> None:
        """Send a request that has no response."""

    def notify_closed(callback: Callable[[], None]) -> None:
        """Call `callback` once when the connection is closed; at once if it is."""

    def notify_room(callback: Callable[[], None]) -> None:
        """Call `callback` once when there is room or the connection is closed; at once if so already."""

    def close(why: str) -> None:
        """Close the connection and log `why`."""


Answer = RemotingCommand | Deferred[RemotingCommand | None] | Awaitable[RemotingCommand | None] | None
Handler = Callable[[RemotingCommand, IConnection], Answer]

H_co = TypeVar("H_co", bound=Header | None, covariant=True)
M = TypeVar("M", bound=Callable[..., Any])


class Call(NamedTuple, Generic[H_co]):
    """One request, as passed to its handler. `header` is None for a code without a header class."""

    header: H_co
    request: RemotingCommand
    connection: IConnection


#: What a handler returns: the header or body of a SUCCESS response, None for neither, or a whole response.
Result = RemotingCommand | Header | Body | bytes | None


def answers(*codes: int, bounded: bool = False) -> Callable[[M], M]:
    """Mark a method that takes a `Call` as the handler of `codes`; see `HandlerTable.serve`.

    :param bounded: it processes much data in steps, so only a few of these run at a time.
    """

    def mark(method: M) -> M:
        method.__dict__["answers"] = codes, bounded
        return method

    return mark


def answered(request: RemotingCommand, result: Result) -> RemotingCommand:
    """Build the response with `result`."""
    if isinstance(result, RemotingCommand):
        return result
    if isinstance(result, Header):
        return RemotingCommand.response(request, header=result)
    return RemotingCommand.response(request, body=result.to_json() if isinstance(result, Body) else result or b"")


#: (extFields, opaque, flag, body, serialize type). The fields are unchecked text.
RawRequest = tuple[dict[str, str], int, int, bytes, int]
BatchHandler = Callable[[list[RawRequest], IConnection], "bytes | Deferred[bytes]"]


#: The fields of a request that its response needs: opaque, flag, serialize type.
Asked = tuple[int, int, int]


#: The bytes of one read, where to begin in them, and the connection.
PlainRead = tuple[bytes, int, IConnection]


class Taken(NamedTuple):
    """Requests that a plain handler took and answers later: for each read where it stopped and how many it took, the
    bytes of the responses for each read, and a function that names the requests of a read, by its number, should these
    fail."""

    reads: Sequence[tuple[int, int]]
    answers: Deferred[list[bytes]]
    asked: Callable[[int], Sequence[Asked]]


#: The first two of these, for requests that were answered at once.
Answered = tuple[Sequence[tuple[int, int]], list[bytes]]

#: Handles plain requests at the beginnings of reads, one read a connection; None without such a handler.
PlainHandler = Callable[[Sequence[PlainRead]], Taken | Answered | None]


#: Whether a plain request may be handled, by (connection, access key, signature, signed content, values of the fields
#: that name what it is about). One that may not is left to the handler that refuses it.
PlainGuard = Callable[[IConnection, bytes | None, bytes | None, bytes, tuple[bytes, ...]], bool]


class IExtensions(Interface):
    """Wraps handlers with the hooks of extensions."""

    def wants(code: int) -> bool:
        """Whether a hook sees the requests of `code`."""

    def around(code: int, handler: Handler) -> Handler:
        """Return `handler` wrapped in the hooks that want `code`."""

    def around_batch(code: int, handler: BatchHandler) -> BatchHandler:
        """As `around`, for a batch handler."""


class IGuard(Interface):
    """Wraps handlers with a permission check."""

    def guarded(code: int, handler: Handler) -> Handler:
        """Return `handler` wrapped in the check. Raises ValueError where no permission is defined for `code`."""

    def guarded_batch(code: int, handler: BatchHandler) -> BatchHandler:
        """As `guarded`, for a batch handler."""

    def guarding_plain(code: int, fields: Sequence[str]) -> PlainGuard:
        """Return the check of plain requests of `code`, about what these extFields name."""


@attrs.define
class HandlerTable:
    """Maps codes to handlers and to batch handlers. Without a guard, every peer may send every request."""

    _handlers: dict[int, Handler] = attrs.field(factory=dict)
    batch: dict[int, BatchHandler] = attrs.field(factory=dict)
    _guard: IGuard | None = None
    _runs_max: dict[int, int] = attrs.field(factory=dict)
    #: By code, what takes plain requests before they are split into frames.
    plain: dict[int, PlainHandler] = attrs.field(factory=dict)
    #: Called after the requests of one read, in time that counts against their sender: does what they
    #: have caused, if that is much.
    charge: Callable[[], None] | None = None
    #: Their hooks are called within the guard's check: they see no request that it refuses.
    extensions: IExtensions | None = None

    def protect(self, guard: IGuard) -> None:
        """Check all requests with `guard`. Raises ValueError if handlers are registered already."""
        if self.codes:
            raise ValueError("a guard comes before the first handler")
        self._guard = guard

    def register(self, code: int, handler: Handler) -> None:
        """Register `handler` for `code`. Raises ValueError if it has one, or no row in the request table."""
        _check_known(code)
        if code in self._handlers:
            raise ValueError(f"code {code} has a handler")
        if self.extensions is not None:
            handler = self.extensions.around(code, handler)
        self._handlers[int(code)] = handler if self._guard is None else self._guard.guarded(code, handler)

    def serve(self, family: object, bound: Callable[[Any], Handler] | None = None) -> None:
        """Register the methods of `family` that are marked with `@answers`; `bound` limits how many of the bounded run
        at a time. Raises ValueError as `register` does."""
        for name, function in vars(type(family)).items():
            codes, is_bounded = getattr(function, "answers", ((), False))
            for code in codes:
                _check_known(code)
                handler = _decoding(code, getattr(family, name))
                if is_bounded:
                    if bound is None:
                        raise ValueError(f"nothing bounds the handler of code {code}")
                    handler = bound(handler)
                self.register(code, handler)

    def register_batch(self, code: int, handler: BatchHandler, run_max: int = RUN_MAX) -> None:
        """Register `handler` for the requests of `code` from one read, `run_max` at a time. Raises ValueError as
        `register` does."""
        _check_known(code)
        if code in self.batch:
            raise ValueError(f"code {code} has a batch handler")
        if self.extensions is not None:
            handler = self.extensions.around_batch(code, handler)
        self.batch[int(code)] = handler if self._guard is None else self._guard.guarded_batch(code, handler)
        self._runs_max[int(code)] = run_max

    def register_plain(self, code: int, handler: PlainHandler) -> None:
        """Have `handler` take plain requests of `code`, which also has a handler of another kind. It checks them itself
        by `plain_guard`. It is not used where an extension wants the requests of `code`."""
        _check_known(code)
        if self.extensions is None or not self.extensions.wants(code):
            self.plain[code] = handler

    def plain_guard(self, code: int, *fields: str) -> PlainGuard | None:
        """The guard's check of plain requests; None if every peer may send every request."""
        return None if self._guard is None else self._guard.guarding_plain(code, fields)

    def take_plain(self, reads: Sequence[PlainRead]) -> Taken | Answered | None:
        """Have the first of the plain handlers that can take requests from the beginnings of `reads`: of two calls in
        a row mostly the same one, which is asked first."""
        for place, (code, handler) in enumerate(self.plain.items()):
            taken = handler(reads)
            if taken is not None:
                if place and code in self.plain:
                    self.plain = {code: handler, **self.plain}
                return taken
        return None

    def run_max(self, code: int) -> int:
        """Maximum number of requests of `code` passed to its batch handler at a time."""
        return self._runs_max.get(code, RUN_MAX)

    def wrap(self, code: int, around: Callable[[Any], Any]) -> None:
        """Replace the handlers of `code`, of both kinds, by `around(handler)`; no effect if it has none."""
        if code in self._handlers:
            self._handlers[int(code)] = around(self._handlers[code])
        if code in self.batch:
            self.batch[int(code)] = around(self.batch[code])

    def refuse(self, codes: Iterable[int], why: Refused) -> None:
        """From now on refuse requests of those `codes` that have a handler, with `why`."""

        def refuse(*_: Any) -> Any:
            raise why

        for code in codes:
            self.plain = {each: handler for each, handler in self.plain.items() if each != code}
            if code in self._handlers:
                self._handlers[int(code)] = refuse
            if code in self.batch:
                self.batch[int(code)] = refuse

    def replace(self, codes: Iterable[int], handler: Handler) -> None:
        """Have `handler` handle the requests of those `codes` in place of their handlers, of all kinds."""
        for code in map(int, codes):
            self.plain = {each: plain for each, plain in self.plain.items() if each != code}
            self.batch.pop(code, None)
            hooked = handler if self.extensions is None else self.extensions.around(code, handler)
            self._handlers[code] = hooked if self._guard is None else self._guard.guarded(code, hooked)

    def become(self, other: HandlerTable) -> None:
        """Serve what `other` serves, on the connections that have this table."""
        self._handlers, self.batch, self.plain = other._handlers, other.batch, other.plain
        self._guard, self._runs_max, self.charge = other._guard, other._runs_max, other.charge

    def serve_only_while(self, test: Callable[[], bool], codes: Iterable[int], why: Refused) -> None:
        """From now on refuse requests of those `codes` with `why` while `test` fails; of others too none is plain then.
        It is looked at once for all requests of a code that were read together."""

        def around(handler: Callable[..., Any]) -> Callable[..., Any]:
            def checked(*args: Any) -> Any:
                if not test():
                    raise why
                return handler(*args)

            checked.__module__ = handler.__module__
            return checked

        def plain_while(handler: PlainHandler) -> PlainHandler:
            return lambda reads: handler(reads) if test() else None

        for code in codes:
            self.wrap(code, around)
        self.plain = {code: plain_while(handler) for code, handler in self.plain.items()}

    @property
    def codes(self) -> frozenset[int]:
        """Codes with a handler of either kind."""
        return frozenset(self._handlers) | frozenset(self.batch)

    def served_by(self, code: int) -> str:
        """The module of the handler of `code`. Raises KeyError without one."""
        module: str = (self.batch.get(code) or self._handlers[code]).__module__
        return module

    def handle(self, request: RemotingCommand, connection: IConnection) -> Answer:
        """Handle `request`; errors become responses, never exceptions."""
        handler = self._handlers.get(request.code)
        if handler is None:
            remark = f" request type {request.code} not supported"
            return RemotingCommand.response(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        if request.is_oneway and REQUESTS[request.code].read_only:
            return None
        try:
            _check_length(request)
            answer = handler(request, connection)
        except Exception as error:
            return failure_response(request, error)
        if answer is None or isinstance(answer, RemotingCommand):
            return answer
        deferred = answer if isinstance(answer, Deferred) else Deferred.fromCoroutine(cast(Any, answer))

        def failed(failure: Failure) -> RemotingCommand | None:
            return failure_response(request, failure.value)

        return deferred.addErrback(failed)


def _decoding(code: int, method: Callable[[Call[Any]], Any]) -> Handler:
    """The handler that calls `method` with the decoded header."""
    header_class = REQUESTS[code].header

    def call(request: RemotingCommand, connection: IConnection) -> Call[Any]:
        header = None if header_class is None else decode_header(header_class, request.ext_fields)
        return Call(header, request, connection)

    async def handle_async(request: RemotingCommand, connection: IConnection) -> RemotingCommand:
        return answered(request, await method(call(request, connection)))

    def handle(request: RemotingCommand, connection: IConnection) -> Answer:
        result = method(call(request, connection))
        if isinstance(result, Deferred):
            return result.addCallback(partial(answered, request))
        return answered(request, result)

    handler: Handler = handle_async if iscoroutinefunction(method) else handle
    handler.__module__ = method.__module__
    return handler


def _check_length(request: RemotingCommand) -> None:
    size, most = len(request.body), REQUESTS[request.code].body_bytes_max
    if size > most:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"a body of {size} bytes: this request may have {most} at most")


def _check_known(code: int) -> None:
    if code not in REQUESTS:
        raise ValueError(f"code {code} has no row in mqbroker.wire.requests, so its permission is unknown")


def failure_response(request: RemotingCommand, error: BaseException | None) -> RemotingCommand:
    """Build the response to a request that failed with `error`; unexpected errors are logged with traceback."""
    if isinstance(error, Refused):
        return RemotingCommand.response(request, error.code, error.remark)
    if isinstance(error, MQError):
        return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, str(error))
    log.failure("{request} failed", Failure(error), request=request.describe())  # type: ignore[no-untyped-call]
    return RemotingCommand.response(request, ResponseCode.SYSTEM_ERROR, UNEXPECTED_ERROR)
