"""Extensions of the daemons: objects of other packages that are called around requests and with a server's connections.

They are classes that an entry point of the group `mqbroker.extensions` names, and that the setting `extensions` loads.
Requests that no extension wants are handled as without any, by the compiled module where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure
from zope.interface import implementer

from mqbroker.errors import BadExtension, Refused
from mqbroker.remoting.failures import asked, failures
from mqbroker.remoting.handlers import (
    Answer,
    BatchHandler,
    Handler,
    IConnection,
    IExtensions,
    RawRequest,
    failure_response,
)
from mqbroker.remoting.hooks import ConnectionListener as ConnectionListener
from mqbroker.remoting.hooks import RpcHook as RpcHook
from mqbroker.remoting.rate_limited_log import RateLimitedLog
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import FrameDecoder, RemotingCommand, decode_command, encode_batch_answer

log = Logger()

GROUP = "mqbroker.extensions"
FAILURES_LOGGED_PER_MINUTE = 5

#: What a peer gets for a request in which an extension has failed.
_FAILED = "an extension of this server failed: see the log of the server"


class RequestHook:
    """Sees the requests of `codes` and cannot change their outcome: exceptions are logged, and the request continues.
    It runs on the reactor's thread and must not block."""

    codes: Collection[int] = ()

    def before(self, addr: str, request: RemotingCommand) -> object:
        """Called before the request is handled; `after` gets what this returns."""

    def after(self, seen: Any, response: RemotingCommand | None) -> None:
        """Called with the response, or None as for `RpcHook.after_response`."""


@implementer(IExtensions)
@attrs.frozen
class Extensions:
    """The extensions of one daemon. `now` is the time, seconds, by which lines about failures are limited."""

    members: Sequence[object] = ()
    now: Callable[[], float] = lambda: 0.0
    _failures: RateLimitedLog = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        limited = RateLimitedLog("failures of extensions", self.now, FAILURES_LOGGED_PER_MINUTE)
        object.__setattr__(self, "_failures", limited)

    def wants(self, code: int) -> bool:
        """Whether one of them sees the requests of `code`, which are then not handled by a plain handler."""
        return any(
            isinstance(each, RpcHook) or (isinstance(each, RequestHook) and code in each.codes) for each in self.members
        )

    def around(self, code: int, handler: Handler) -> Handler:
        """The handler of `code`, wrapped so that its hooks are called; unchanged without hooks for the code."""
        if not self.wants(code):
            return handler

        def call(request: RemotingCommand, connection: IConnection) -> Answer:
            addr = connection.remote_addr
            seen = self._before(addr, request)
            try:
                answer = handler(request, connection)
            except Exception as error:
                answer = failure_response(request, error)
            if answer is None or isinstance(answer, RemotingCommand):
                return self._after(addr, request, seen, answer)
            deferred = answer if isinstance(answer, Deferred) else Deferred.fromCoroutine(answer)  # type: ignore[arg-type]
            deferred.addErrback(lambda failure: failure_response(request, failure.value))
            return deferred.addCallback(partial(self._after, addr, request, seen))

        call.__module__ = handler.__module__
        return call

    def around_batch(self, code: int, handler: BatchHandler) -> BatchHandler:
        """As `around`, for a batch handler, which then gets its requests one by one."""
        if not self.wants(code):
            return handler

        def one(raw: RawRequest, connection: IConnection) -> bytes | Deferred[bytes]:
            fields, opaque, flag, body, serialize_type = raw
            version = connection.peer_version
            command = RemotingCommand(code, fields, body, None, opaque, flag, version=version)
            request = attrs.evolve(command, serialize_type=serialize_type)
            addr = connection.remote_addr

            def after(data: bytes) -> bytes:
                response = self._after(addr, request, seen, _response_in(data))
                return b"" if response is None or request.is_oneway else encode_batch_answer(response)

            def failed(error: BaseException | None) -> bytes:
                # Hooks see failed requests as well, even if no response is sent.
                return failures([(opaque, 0, serialize_type)], error)

            try:
                seen = self._before(addr, request)
            except Refused as error:
                return failures(asked([raw]), error)
            try:
                answers = handler([(request.ext_fields, opaque, flag, request.body, serialize_type)], connection)
            except Exception as error:
                answers = failed(error)
            try:
                if isinstance(answers, bytes):
                    return after(answers)
            except Refused as error:
                return failures(asked([raw]), error)
            answers.addErrback(lambda failure: failed(failure.value)).addCallback(after)
            return answers.addErrback(lambda failure: failures(asked([raw]), failure.value))

        def call(requests: list[RawRequest], connection: IConnection) -> bytes | Deferred[bytes]:
            parts = [one(raw, connection) for raw in requests]
            ready = [part for part in parts if isinstance(part, bytes)]
            if len(ready) == len(parts):
                return b"".join(ready)
            later = [part for part in parts if not isinstance(part, bytes)]
            return gatherResults(later).addCallback(lambda more: b"".join([*ready, *more]))

        call.__module__ = handler.__module__
        return call

    def tell(self, event: str, *args: str) -> None:
        """Call a method of all connection listeners."""
        for each in self.members:
            if isinstance(each, ConnectionListener):
                self._call(getattr(each, event), *args)

    def _before(self, addr: str, request: RemotingCommand) -> list[tuple[RequestHook, object]]:
        """Raises Refused."""
        seen: list[tuple[RequestHook, object]] = []
        for each in self.members:
            if isinstance(each, RpcHook):
                self._call(each.before_request, addr, request, fails=True)
            if isinstance(each, RequestHook) and request.code in each.codes:
                seen.append((each, self._call(each.before, addr, request)))
        return seen

    def _after(
        self,
        addr: str,
        request: RemotingCommand,
        seen: Sequence[tuple[RequestHook, object]],
        response: RemotingCommand | None,
    ) -> RemotingCommand | None:
        """The response. Raises Refused."""
        for hook, before in seen:
            self._call(hook.after, before, response)
        for each in self.members:
            if isinstance(each, RpcHook):
                self._call(each.after_response, addr, request, response, fails=True)
        return response

    def _call(self, call: Callable[..., object], *args: object, fails: bool = False) -> object:
        """Call it and return the result. Errors are logged; with `fails` Refused is raised then."""
        try:
            return call(*args)
        except (Exception, SystemExit) as error:
            if fails and isinstance(error, Refused):
                raise
            trace = Failure(error).getTraceback()  # type: ignore[no-untyped-call]
            owner = type(getattr(call, "__self__", call)).__qualname__
            name = f"{owner}.{getattr(call, '__name__', '')}"
            end = "the request fails" if fails else "the operation continues"
            line = "the extension {name} failed; {end}: {trace}"
            self._failures.say(LogLevel.error, line, name=name, end=end, trace=trace)
        if fails:
            raise Refused(ResponseCode.SYSTEM_ERROR, _FAILED)
        return None


def _response_in(data: bytes) -> RemotingCommand | None:
    for serialize_type, header, body in FrameDecoder().feed(data):
        return decode_command(serialize_type, header, body)
    return None


def check_extensions(names: Sequence[str]) -> list[str]:
    """Raises BadExtension if one of the names is no entry point's. There are no warnings to return."""
    if not names:
        return []
    known = {each.name for each in entry_points(group=GROUP)}
    for name in names:
        if name not in known:
            found = f"known are {', '.join(sorted(known))}" if known else "none is installed"
            why = f"no entry point of the group {GROUP} has this name: {found}; install its package where this runs"
            raise BadExtension(name, why)
    return []


def load_extensions(names: Sequence[str], now: Callable[[], float]) -> Extensions:
    """Make the extensions of these names, in this order. Raises BadExtension."""
    if not names:
        return Extensions()
    check_extensions(names)
    by_name = {each.name: each for each in entry_points(group=GROUP)}
    members = [_made(name, by_name[name].load) for name in names]
    log.info("extensions: {names}", names=", ".join(names))
    return Extensions(members, now)


def _made(name: str, load: Callable[[], Any]) -> object:
    try:
        made = load()()
    except (Exception, SystemExit) as error:
        raise BadExtension(name, f"it cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, RpcHook | RequestHook | ConnectionListener):
        why = f"{type(made).__name__} is not an RpcHook, SendHook, PullHook or ConnectionListener"
        raise BadExtension(name, why)
    return made
