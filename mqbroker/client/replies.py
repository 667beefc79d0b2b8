"""Request and reply: a producer's requests that wait for replies, which brokers push to it. Java's RequestReply API."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import attrs

from mqbroker.client.messages import Message, ReceivedMessage, SendResult, SystemMessage
from mqbroker.client.net import Net, Signal
from mqbroker.client.options import ProducerOptions
from mqbroker.client.routes import Route, Routes
from mqbroker.client.send import SendsInFlight, Slot
from mqbroker.errors import ConnectionClosed, MQError, Refused, RequestTimedOut
from mqbroker.wire.bodies import MessageQueue
from mqbroker.wire.codes import KEY_SEPARATOR, REPLY_TOPIC_POSTFIX, Prop, ResponseCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.compression import decompress_body
from mqbroker.wire.headers import ReplyMessageRequestHeader, decode_header
from mqbroker.wire.names import split_address
from mqbroker.wire.properties import decode_properties
from mqbroker.wire.record import Host

log = logging.getLogger(__name__)

_CORRELATION = f"\x02{Prop.CORRELATION_ID}\x01"


@attrs.define(eq=False)
class Expected:
    """A request whose reply is expected."""

    signal: Signal
    outcome: ReceivedMessage | MQError | None = None


class Replies:
    """The requests of one producer that have no reply yet, by correlation id."""

    def __init__(self, net: Net, options: ProducerOptions) -> None:
        self._net = net
        self._in_flight = SendsInFlight(net, options.requests_in_flight_max, options.sends_in_flight_bytes_max)
        self._expected: dict[str, Expected] = {}

    async def ask(
        self,
        message: Message,
        client_id: str,
        timeout_s: float,
        until: float,
        send: Callable[[Message], Awaitable[SendResult]],
    ) -> ReceivedMessage:
        """Have `send` send `message` as a request, and return the reply. `until` is the time on the steady clock when
        `timeout_s` ends. Raises RequestTimedOut, and what `send` does."""
        await self._in_flight.acquire(len(message.body), timeout_s)
        with Slot(self._in_flight, len(message.body)):
            request, correlation_id = self.expect(message, client_id, timeout_s)
            try:
                sent = await send(request)
                reply = await self._wait(correlation_id, until - self._net.steady())
            finally:
                del self._expected[correlation_id]
        if reply is None:
            raise RequestTimedOut(
                f"no reply to the request {sent.msg_id} to topic {message.topic} in {timeout_s:g} s: it may be acted on"
            )
        return reply

    async def be_reachable(self, routes: Routes, route: Route, until: float) -> None:
        """Have `routes` know all brokers through which replies may come to a request that goes along `route`."""
        for cluster in route.clusters:
            reply_topic = f"{cluster}_{REPLY_TOPIC_POSTFIX}"
            if routes.known(reply_topic) is None:
                try:
                    await routes.get(reply_topic, timeout_s=max(0.0, until - self._net.steady()))
                except MQError as error:
                    log.info("replies may not come through all brokers of %s: %s", cluster, error)

    def expect(self, message: Message, client_id: str, timeout_s: float) -> tuple[Message, str]:
        """`message` as a request, and its correlation id."""
        correlation_id = f"{self._net.rng.getrandbits(128):032x}"
        self._expected[correlation_id] = Expected(self._net.signal())
        request = SystemMessage.of(
            message,
            {
                Prop.CORRELATION_ID: correlation_id,
                Prop.MESSAGE_REPLY_TO_CLIENT: client_id,
                Prop.MESSAGE_TTL: str(int(timeout_s * 1000)),
            },
        )
        return request, correlation_id

    async def _wait(self, correlation_id: str, timeout_s: float) -> ReceivedMessage | None:
        """The reply; None if none arrives in time. Raises ConnectionClosed if the producer is closed meanwhile."""
        expected = self._expected[correlation_id]
        if expected.outcome is None:
            await expected.signal.wait(max(0.0, timeout_s))
        if isinstance(expected.outcome, MQError):
            raise expected.outcome
        return expected.outcome

    def close(self) -> None:
        """End all waits."""
        for expected in self._expected.values():
            expected.outcome = expected.outcome or ConnectionClosed("the producer was closed before the reply came")
            expected.signal.set()

    def expects(self, request: RemotingCommand) -> bool:
        """Whether it is the reply to one of these."""
        _, _, rest = f"\x02{request.ext_fields.get('properties')}".partition(_CORRELATION)
        return rest.partition("\x02")[0] in self._expected

    def take(self, request: RemotingCommand) -> RemotingCommand:
        """Take a reply that a broker pushes; returns the response."""
        try:
            reply = read_reply(request)
        except MQError as error:
            log.info("a reply cannot be read: %s", error)
            code = error.code if isinstance(error, Refused) else ResponseCode.SYSTEM_ERROR
            return RemotingCommand.response(request, code, f"process reply message fail: {error}")
        correlation_id = reply.properties.get(Prop.CORRELATION_ID, "")
        expected = self._expected.get(correlation_id)
        if expected is None:
            log.info("a reply arrived for the request %s, which is no longer pending", correlation_id[:64])
        elif expected.outcome is None:
            expected.outcome = reply
            expected.signal.set()
        return RemotingCommand.response(request)


def read_reply(request: RemotingCommand) -> ReceivedMessage:
    """The message of PUSH_REPLY_MESSAGE_TO_CLIENT. Raises MQError."""
    header = decode_header(ReplyMessageRequestHeader, request.ext_fields)
    properties = decode_properties((header.properties or "").encode())
    return ReceivedMessage(
        topic=header.topic,
        body=decompress_body(request.body, header.sys_flag),
        tags=properties.get(Prop.TAGS),
        keys=tuple(properties[Prop.KEYS].split(KEY_SEPARATOR)) if Prop.KEYS in properties else (),
        properties=properties,
        queue=MessageQueue(header.topic, "", header.queue_id),
        queue_offset=0,
        commit_log_offset=0,
        msg_id=properties.get(Prop.UNIQ_CLIENT_MESSAGE_ID_KEYIDX, ""),
        offset_msg_id="",
        born_timestamp_ms=header.born_timestamp,
        store_timestamp_ms=header.store_timestamp,
        born_host=_host(header.born_host),
        store_host=_host(header.store_host),
        reconsume_times=header.reconsume_times or 0,
        flag=header.flag,
        sys_flag=header.sys_flag,
        store_size=0,
    )


def _host(address: str) -> Host:
    # Java writes "host/1.2.3.4:5".
    try:
        return split_address(address.rpartition("/")[2])
    except MQError:
        return "0.0.0.0", 0
