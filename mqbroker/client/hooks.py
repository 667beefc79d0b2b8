"""What an application registers beside observers of messages: hooks around requests, listeners to connections, and
filters of messages. Each request of a client passes its hooks: with any, none takes a way around `Hooks.around`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence

import attrs

from mqbroker.client.errors import Forbidden, HookFailed
from mqbroker.client.messages import ReceivedMessage
from mqbroker.client.names import bare_message, is_text
from mqbroker.client.observers import FAILED, Guard
from mqbroker.errors import MQError, Refused
from mqbroker.remoting.hooks import ConnectionListener, RpcHook
from mqbroker.wire.command import EXT_FIELDS_MAX, RemotingCommand

log = logging.getLogger(__name__)

#: Sends a request; returns its response, or None if it has none.
Send = Callable[[RemotingCommand], Awaitable[RemotingCommand | None]]


class Hooks:
    """The RPC hooks and connection listeners among `members`, of clients that share connections."""

    def __init__(self, members: Iterable[object] = (), steady: Callable[[], float] = lambda: 0.0) -> None:
        found = [*members]
        self.rpc = [each for each in found if isinstance(each, RpcHook)]
        self._listeners = [each for each in found if isinstance(each, ConnectionListener)]
        self._rpc_guard = Guard("RPC hook", "request fails", steady)
        self._listener_guard = Guard("connection listener", "operation continues", steady)

    @property
    def key(self) -> tuple[Hashable, ...]:
        """By which clients differ that must not share connections."""
        return tuple(map(id, {id(each): each for each in [*self.rpc, *self._listeners]}.values()))

    async def around(self, addr: str, command: RemotingCommand, send: Send) -> RemotingCommand | None:
        """What `send` returns for the command, between the hooks: each that has seen the request is called once more.
        Raises what `send` raises, Forbidden and Refused of a hook, and HookFailed."""
        request = attrs.evolve(command, ext_fields=dict(command.ext_fields))
        seen: list[RpcHook] = []
        try:
            for hook in self.rpc:
                self._call(hook.before_request, addr, request, of=request, was=command)
                seen.append(hook)
            found = await send(_of(command, request))
        except BaseException:
            self._after(seen, addr, request, None, None)
            raise
        response = None if found is None else attrs.evolve(found, ext_fields=dict(found.ext_fields))
        failure = self._after(seen, addr, request, response, found)
        if failure is not None:
            raise failure
        return found if found is None or response is None else _of(found, response)

    def _after(
        self,
        seen: Sequence[RpcHook],
        addr: str,
        request: RemotingCommand,
        response: RemotingCommand | None,
        was: RemotingCommand | None,
    ) -> MQError | None:
        """Call them with the response; returns the first error."""
        failure: MQError | None = None
        for hook in seen:
            try:
                self._call(hook.after_response, addr, request, response, of=response, was=was)
            except MQError as error:
                failure = failure or error
        return failure

    def _call(
        self, call: Callable[..., object], *args: object, of: RemotingCommand | None, was: RemotingCommand | None
    ) -> None:
        """Call a hook, which leaves `of` such that it can be sent or read; else it is as it `was` for the other hooks.
        Raises Forbidden, Refused and HookFailed."""
        try:
            result = self._rpc_guard.call(call, *args, may_raise=(Forbidden, Refused))
        except Refused as error:
            told: tuple[object, object] = error.code, error.remark
            if not isinstance(told[0], int) or not isinstance(told[1], str):
                raise HookFailed(self._rpc_guard.name_of(call), "its Refused has no code or no text") from None
            raise
        why = None if of is None else _what_is_wrong_with(of)
        if why is not None and of is not None and was is not None:
            of.code, of.ext_fields, of.body, of.remark = was.code, dict(was.ext_fields), was.body, was.remark
        if result is FAILED:
            why = "it raised an exception"
        if why is not None:
            raise HookFailed(self._rpc_guard.name_of(call), why)

    def tell(self, event: str, *args: str) -> None:
        """Call a method of all connection listeners."""
        for each in self._listeners:
            self._listener_guard.call(getattr(each, event), *args)


def _of(command: RemotingCommand, seen: RemotingCommand) -> RemotingCommand:
    """The command with what hooks may have changed."""
    return attrs.evolve(command, code=seen.code, ext_fields=seen.ext_fields, body=seen.body, remark=seen.remark)


def _what_is_wrong_with(command: RemotingCommand) -> str | None:
    fields: object = command.ext_fields
    code: object = command.code
    body: object = command.body
    if type(fields) is not dict or len(fields) > EXT_FIELDS_MAX:
        return f"it left fields that are not a dictionary of at most {EXT_FIELDS_MAX}"
    for pair in fields.items():
        for each in pair:
            if not is_text(each):
                return f"it left the field {pair[0]!r:.100} with something that is not text"
    if not isinstance(body, bytes) or not (command.remark is None or is_text(command.remark)):
        return "it left a body that is not bytes, or a remark that is not text"
    if not isinstance(code, int) or not -(2**31) <= code < 2**31:
        return "it left a code that is not a whole number of 32 bits"
    return None


class MessageFilter:
    """Decides which of the messages that were pulled a consumer gets, beside its subscription. It is called on the
    event loop's thread (of the blocking API, the clients' own), and must not block."""

    def accepts(self, group: str, message: ReceivedMessage) -> bool:
        """Whether the consumer gets the message. One that is not accepted counts as consumed. Where this raises, or
        returns neither True nor False, the error is logged, and the message is accepted."""
        return True


class Filters:
    """The filters among `members`, of one consumer of `group`."""

    def __init__(self, members: Iterable[object], group: str, namespace: str, steady: Callable[[], float]) -> None:
        self._filters = [each for each in members if isinstance(each, MessageFilter)]
        self._group, self._namespace = group, namespace
        self._guard = Guard("message filter", "message is accepted", steady)

    def accepted(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """The messages that all filters accept."""
        return [each for each in messages if self._accepts(each)] if self._filters else messages

    def _accepts(self, message: ReceivedMessage) -> bool:
        shown = bare_message(self._namespace, message)
        call = self._guard.call
        return not any(call(each.accepts, self._group, shown, returns=bool) is False for each in self._filters)
