"""The guard before a broker's handlers: no request reaches one unless its sender may make it.

Only a broker with aclEnable has one: without, no handler is wrapped and nothing is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from zope.interface import implementer

from mqbroker.access.accounts import AccessRefused, Account, Accounts
from mqbroker.access.needs import find_needs
from mqbroker.errors import MQError, Refused
from mqbroker.remoting.handlers import Answer, BatchHandler, Handler, IConnection, IGuard, RawRequest
from mqbroker.wire.access import ACCESS, Access
from mqbroker.wire.codes import RequestCode, ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand, encode_command

log = Logger()

#: Java's clients and their users know a refusal by this: its server answers with what it threw.
REMARK_PREFIX = "org.apache.rocketmq.acl.common.AclException: "

#: How many peers are remembered as told of in the log.
_PEERS_MAX = 1000
_REASON_LENGTH_MAX = 200


@implementer(IGuard)
class Guard:
    """Checks requests against accounts, which may be replaced at any time."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._told: dict[str, None] = {}

    def take(self, accounts: Accounts) -> None:
        """Go by these from now on."""
        self._accounts = accounts

    def guarded(self, code: int, handler: Handler) -> Handler:
        """`handler`, reached only by who may ask `code`."""

        def check_first(request: RemotingCommand, connection: IConnection) -> Answer:
            self.check(code, request.ext_fields, request.body, connection)
            return handler(request, connection)

        check_first.__module__ = handler.__module__
        return check_first

    def guarded_batch(self, code: int, handler: BatchHandler) -> BatchHandler:
        """As `guarded`, for all requests of one read: those that are refused are answered, the others handled."""

        def check_first(requests: list[RawRequest], connection: IConnection) -> bytes | Deferred[bytes]:
            allowed, refusals = self._sorted_out(code, requests, connection)
            if not refusals:
                return handler(requests, connection)
            refused = b"".join(refusals)
            if not allowed:
                return refused
            answers = handler(allowed, connection)
            return refused + answers if isinstance(answers, bytes) else answers.addCallback(refused.__add__)

        check_first.__module__ = handler.__module__
        return check_first

    def check(self, code: int, fields: dict[str, str], body: bytes, connection: IConnection) -> None:
        """Raise Refused where the peer may not ask this."""
        try:
            account = self._accounts.identify(fields, body, connection.remote_addr.rpartition(":")[0])
            if account is not None:
                _check_account(account, code, fields, body)
        except AccessRefused as error:
            self._tell(connection, code, str(error))
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{REMARK_PREFIX}{error}") from None

    def _sorted_out(
        self, code: int, requests: Sequence[RawRequest], connection: IConnection
    ) -> tuple[list[RawRequest], list[bytes]]:
        allowed: list[RawRequest] = []
        refusals: list[bytes] = []
        for request in requests:
            fields, opaque, flag, body, serialize_type = request
            try:
                self.check(code, fields, body, connection)
            except Refused as error:
                command = RemotingCommand(code, opaque=opaque, serialize_type=serialize_type)
                # A oneway one counts as refused, though nobody is told.
                answer = RemotingCommand.response(command, error.code, error.remark)
                refusals.append(b"" if flag & ONEWAY_FLAG else encode_command(answer))
            else:
                allowed.append(request)
        return allowed, refusals

    def _tell(self, connection: IConnection, code: int, why: str) -> None:
        """Log a refusal, once for each peer."""
        peer = connection.remote_addr
        if peer in self._told:
            return
        if len(self._told) >= _PEERS_MAX:
            del self._told[next(iter(self._told))]
        self._told[peer] = None
        log.warn(
            "{peer} may not {what}: {why}; further refusals of this peer are not logged",
            peer=peer,
            what=RequestCode(code).name,
            why=why[:_REASON_LENGTH_MAX],
        )


def _check_account(account: Account, code: int, fields: dict[str, str], body: bytes) -> None:
    if ACCESS.get(RequestCode(code)) is Access.ADMIN:
        account.check_admin(code)
    try:
        needs = find_needs(code, fields, body)
    except MQError as error:  # what cannot be read cannot be allowed
        raise AccessRefused(str(error)) from None
    account.check(needs)
