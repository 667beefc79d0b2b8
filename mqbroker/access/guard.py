"""The guard before a broker's handlers: it rejects requests that their sender may not make.

Only a broker with aclEnable has one: otherwise no handler is wrapped, and nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from zope.interface import implementer

from mqbroker.access.accounts import AccessRefused, Account, Accounts, IAccessControl
from mqbroker.errors import MQError, Refused
from mqbroker.remoting.handlers import Answer, BatchHandler, Handler, IConnection, IGuard, PlainGuard, RawRequest
from mqbroker.wire.access import PUB, Demand, Need
from mqbroker.wire.bounded_cache import BoundedCache
from mqbroker.wire.codes import NO_SEND_TOPICS, SCHEDULE_TOPIC, Prop, RequestCode, ResponseCode
from mqbroker.wire.command import ONEWAY_FLAG, RemotingCommand, encode_command
from mqbroker.wire.record import Record, decode_record
from mqbroker.wire.requests import demand_of
from mqbroker.wire.signature import ACCESS_KEY, is_signature_of, is_signed

log = Logger()

Fields = Mapping[str, str]

#: Prefix by which Java's clients and users know a refusal: its server responds with the exception's text.
REMARK_PREFIX = "org.apache.rocketmq.acl.common.AclException: "

#: Maximum number of peers whose refusals are remembered as logged.
_PEERS_MAX = 1000
_REASON_LENGTH_MAX = 200
#: Bytes of the rights that are remembered of plain requests.
_RIGHTS_BYTES_MAX = 4 * 1024 * 1024


@implementer(IGuard, IAccessControl)
class Guard:
    """Checks requests against accounts, which may be replaced at any time."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        #: Peers and access keys whose refusals were logged since the accounts changed.
        self._told: dict[tuple[str, str], None] = {}
        #: Whether an account may send plain requests: by access key, code, and the names in the requests.
        self._plain_rights: BoundedCache[tuple[str, int, tuple[bytes, ...]], bool] = BoundedCache(_RIGHTS_BYTES_MAX)

    def set_accounts(self, accounts: Accounts) -> None:
        """Replace the accounts."""
        self._accounts = accounts
        self._told.clear()
        self._plain_rights.clear()

    def guarded(self, code: int, handler: Handler) -> Handler:
        """Wrap `handler`, so that it gets only requests whose sender may send `code`. Raises ValueError if the table
        has no permission for it."""
        demand = demand_of(code)

        def check_first(request: RemotingCommand, connection: IConnection) -> Answer:
            self._check(code, demand, request.ext_fields, request.body, connection)
            return handler(request, connection)

        check_first.__module__ = handler.__module__
        return check_first

    def guarded_batch(self, code: int, handler: BatchHandler) -> BatchHandler:
        """As `guarded`, for all requests of one read: refusals are answered, the other requests handled."""
        demand = demand_of(code)

        def check_first(requests: list[RawRequest], connection: IConnection) -> bytes | Deferred[bytes]:
            allowed, refusals = self._sorted_out(code, demand, requests, connection)
            if not refusals:
                return handler(requests, connection)
            refused = b"".join(refusals)
            if not allowed:
                return refused
            answers = handler(allowed, connection)
            return refused + answers if isinstance(answers, bytes) else answers.addCallback(refused.__add__)

        check_first.__module__ = handler.__module__
        return check_first

    def guarding_plain(self, code: int, fields: Sequence[str]) -> PlainGuard:
        demand = demand_of(code)

        def may_send(account: Account, names: tuple[bytes, ...]) -> bool:
            try:
                named = dict(zip(fields, map(bytes.decode, names), strict=True))
                _check_account(account, code, demand, named, b"")
            except (AccessRefused, Refused):
                return False
            return True

        def admits(
            connection: IConnection,
            access_key: bytes | None,
            signature: bytes | None,
            content: bytes,
            names: tuple[bytes, ...],
        ) -> bool:
            def has_signed(account: Account) -> bool:
                return is_signature_of(content, signature or b"", account.secret_key)

            key = None if access_key is None else access_key.decode()
            try:
                account = self._accounts.identify(key, _host_of(connection), has_signed)
            except AccessRefused:
                return False
            if account is None:
                return True
            place = account.access_key, code, names
            is_allowed = self._plain_rights.get(place)
            if is_allowed is None:
                is_allowed = may_send(account, names)
                self._plain_rights.keep(place, is_allowed, sum(map(len, names)))
            return is_allowed

        return admits

    def check_topics(
        self, code: int, fields: Fields, body: bytes, connection: IConnection, topics: Sequence[str]
    ) -> None:
        permission = demand_of(code).of_message
        if permission is None:
            raise ValueError(f"nothing in mqbroker.wire.requests says what code {code} needs of a message")
        needs = [Need.of_topic(topic, permission) for topic in topics]
        self._check_request(code, fields, body, connection, lambda account: account.check(needs))

    def check_record(self, code: int, fields: Fields, body: bytes, connection: IConnection, record: bytes) -> None:
        self.check_topics(code, fields, body, connection, _topics_of(decode_record(record)))

    def account_of(self, fields: Fields, body: bytes, connection: IConnection) -> str | None:
        account = self._identify(fields, body, connection)
        return None if account is None else account.access_key

    def may_write(self, access_key: str | None, topics: Sequence[str]) -> bool:
        if access_key is None:
            return True
        account = self._accounts.by_key.get(access_key)
        try:
            if account is not None:
                account.check([Need.of_topic(topic, PUB) for topic in topics])
        except AccessRefused:
            return False
        return account is not None

    def _identify(self, fields: Fields, body: bytes, connection: IConnection) -> Account | None:
        def has_signed(account: Account) -> bool:
            return is_signed(fields, body, account.secret_key)

        return self._accounts.identify(fields.get(ACCESS_KEY), _host_of(connection), has_signed)

    def _check(self, code: int, demand: Demand, fields: Fields, body: bytes, connection: IConnection) -> None:
        """Raise Refused if the peer may not send this request."""
        self._check_request(
            code, fields, body, connection, lambda account: _check_account(account, code, demand, fields, body)
        )

    def _check_request(
        self, code: int, fields: Fields, body: bytes, connection: IConnection, check: Callable[[Account], None]
    ) -> None:
        """Raise Refused if `check` refuses the account of a request, if it needs one."""
        try:
            account = self._identify(fields, body, connection)
            if account is not None:
                check(account)
        except AccessRefused as error:
            self._tell(connection, code, fields.get(ACCESS_KEY, ""), str(error))
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{REMARK_PREFIX}{error}") from None

    def _sorted_out(
        self, code: int, demand: Demand, requests: Sequence[RawRequest], connection: IConnection
    ) -> tuple[list[RawRequest], list[bytes]]:
        allowed: list[RawRequest] = []
        refusals: list[bytes] = []
        for request in requests:
            fields, opaque, flag, body, serialize_type = request
            try:
                self._check(code, demand, fields, body, connection)
            except Refused as error:
                command = RemotingCommand(code, opaque=opaque, serialize_type=serialize_type)
                # A oneway request counts as refused, too, without a response.
                answer = RemotingCommand.response(command, error.code, error.remark)
                refusals.append(b"" if flag & ONEWAY_FLAG else encode_command(answer))
            else:
                allowed.append(request)
        return allowed, refusals

    def _tell(self, connection: IConnection, code: int, access_key: str, why: str) -> None:
        """Log a refusal, once for each host and account; unknown accounts count as one."""
        peer = _host_of(connection), access_key if access_key in self._accounts.by_key else ""
        if peer in self._told:
            return
        if len(self._told) >= _PEERS_MAX:
            del self._told[next(iter(self._told))]
        self._told[peer] = None
        log.warn(
            "{peer} may not {what}: {why}; further refusals of this account at this host are not logged until the "
            "accounts change",
            peer=connection.remote_addr,
            what=RequestCode(code).name,
            why=why[:_REASON_LENGTH_MAX],
        )


def _host_of(connection: IConnection) -> str:
    return connection.remote_addr.rpartition(":")[0]


def _topics_of(record: Record) -> list[str]:
    """The topics that a message belongs to: of a delayed message its real topic; of a half message also the half topic,
    which consumers may not read."""
    real = record.properties.get(Prop.REAL_TOPIC)
    if record.topic not in NO_SEND_TOPICS or real is None:
        return [record.topic]
    return [real] if record.topic == SCHEDULE_TOPIC else [record.topic, real]


def _check_account(account: Account, code: int, demand: Demand, fields: Fields, body: bytes) -> None:
    if demand.is_of_administrators:
        account.check_admin(code)
    if account.has_all_permissions:
        return
    try:
        needs = demand.find(code, fields, body)
    except Refused:
        raise
    except MQError as error:  # a message that cannot be read is denied
        raise AccessRefused(str(error)) from None
    account.check(needs)
