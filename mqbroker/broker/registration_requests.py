"""The requests by which a broker registers: made once for all name servers, the long ones in steps.

Source of headers and bodies: BrokerOuterAPI and BrokerController of 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator
from twisted.logger import Logger

from mqbroker.wire.bodies import DataVersion, RegisterBrokerBody, TopicConfigSerializeWrapper
from mqbroker.wire.codes import Perm, RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.frame import FRAME_BYTES_MAX
from mqbroker.wire.headers import (
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from mqbroker.wire.registration import STEP_TOPICS, body_crc32, encode_registration, write_registration

log = Logger()

#: How long others wait while a long body is made.
TURN_SECONDS = 0.01
NEXT_TURN_SECONDS = 1e-6

#: Where slaves would connect to. Nobody listens; the field must be there.
NO_HA_ADDRESS = ""

#: What a name server's frame has room for beside its header.
BODY_BYTES_MAX = FRAME_BYTES_MAX - 64 * 1024


@attrs.frozen
class BrokerIdentity:
    """What a broker calls itself towards name servers."""

    address: str
    name: str
    cluster: str
    broker_id: int


@attrs.frozen
class _Body:
    """A body that was made, and the version of the topics in it."""

    version: DataVersion
    compressed: bool
    data: bytes


class RegistrationRequests:
    """Makes them. `permission` is the broker's own, and may change.

    :param topics: gives all topics with their version.
    """

    def __init__(
        self,
        identity: BrokerIdentity,
        topics: Callable[[], TopicConfigSerializeWrapper],
        permission: int,
        clock: IReactorTime,
        *,
        compressed: bool,
    ) -> None:
        self.permission = permission
        self._identity = identity
        self._topics = topics
        self._clock = clock
        self._compressed = compressed
        self._cooperator = Cooperator(self._turn, lambda call: clock.callLater(NEXT_TURN_SECONDS, call))
        self._made: tuple[tuple[DataVersion, int], _Body] | None = None
        self._making: dict[tuple[DataVersion, int], list[Deferred[_Body]]] = {}

    async def register(self, changes: set[str] | None) -> tuple[RemotingCommand, DataVersion]:
        """A registration of all topics, or of the `changes` alone; and the version that who takes it has then."""
        topics = self._topics()
        body = await self._all(topics) if changes is None else self._some(topics, changes)
        me = self._identity
        header = RegisterBrokerRequestHeader(
            broker_name=me.name,
            broker_addr=me.address,
            cluster_name=me.cluster,
            ha_server_addr=NO_HA_ADDRESS,
            broker_id=me.broker_id,
            compressed=body.compressed,
            body_crc32=body_crc32(body.data),
        )
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body.data), body.version

    def query(self) -> tuple[RemotingCommand, DataVersion]:
        """The question whether a name server has the topics' version, and that version."""
        me = self._identity
        header = QueryDataVersionRequestHeader(
            broker_name=me.name, broker_addr=me.address, cluster_name=me.cluster, broker_id=me.broker_id
        )
        version = self._topics().data_version
        return RemotingCommand.request(RequestCode.QUERY_DATA_VERSION, header, version.to_json()), version

    def goodbye(self) -> RemotingCommand:
        me = self._identity
        header = UnRegisterBrokerRequestHeader(
            broker_name=me.name, broker_addr=me.address, cluster_name=me.cluster, broker_id=me.broker_id
        )
        return RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header)

    # --- bodies

    async def _all(self, topics: TopicConfigSerializeWrapper) -> _Body:
        """All topics: kept until they change, and made once for all name servers that are to be told."""
        key = topics.data_version, self.permission
        if self._made is not None and self._made[0] == key:
            return self._made[1]
        waiting = self._making.get(key)
        if waiting is not None:
            waiter: Deferred[_Body] = Deferred()
            waiting.append(waiter)
            return await waiter
        waiting = self._making[key] = []
        try:
            body = await self._make(topics)
        except BaseException as error:
            del self._making[key]
            for each in waiting:
                each.errback(error)
            raise
        del self._making[key]
        self._made = key, body
        for each in waiting:
            each.callback(body)
        return body

    async def _make(self, topics: TopicConfigSerializeWrapper) -> _Body:
        data = await self._written(topics, self._compressed)
        is_too_long = len(data) > BODY_BYTES_MAX and not self._compressed
        if is_too_long:
            count = len(topics.topic_config_table)
            log.warn(
                "{n} topics are {size} bytes, more than name servers take: they are registered compressed, as with "
                "compressedRegister=true",
                n=count,
                size=len(data),
            )
            data = await self._written(topics, True)
        return _Body(topics.data_version, self._compressed or is_too_long, data)

    async def _written(self, topics: TopicConfigSerializeWrapper, compressed: bool) -> bytes:
        steps = write_registration(RegisterBrokerBody(topics), compressed=compressed, permission=self._only())
        if len(topics.topic_config_table) <= STEP_TOPICS:
            return b"".join(steps)
        pieces: list[bytes] = []
        await self._cooperator.coiterate(map(pieces.append, steps))
        return b"".join(pieces)

    def _some(self, topics: TopicConfigSerializeWrapper, names: set[str]) -> _Body:
        table = topics.topic_config_table
        some = {name: table[name] for name in sorted(names) if name in table}
        body = RegisterBrokerBody(attrs.evolve(topics, topic_config_table=some))
        data = encode_registration(body, compressed=self._compressed, permission=self._only())
        return _Body(topics.data_version, self._compressed, data)

    def _only(self) -> int | None:
        """The permission of all topics, where the broker itself may not be both read and written."""
        both = Perm.READ | Perm.WRITE
        return None if self.permission & both == both else self.permission

    def _turn(self) -> Callable[[], bool]:
        end = self._clock.seconds() + TURN_SECONDS
        return lambda: self._clock.seconds() >= end
