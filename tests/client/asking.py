"""What a broker asks of a consumer, and the answers; what the consumer did meanwhile."""

from typing import Any

import attrs

from mqbroker.client.broker_requests import MemberRequests
from mqbroker.wire import headers as h
from mqbroker.wire.admin_bodies import (
    ResetOffsetBody,
)
from mqbroker.wire.codes import RequestCode
from mqbroker.wire.command import RemotingCommand
from mqbroker.wire.record import encode_record
from tests.client.member import Member, Q
from tests.client.records import a_record
from tests.client.world import World

NOW_MS = 1_700_000_000_000

INFO = RemotingCommand.request(
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    h.GetConsumerRunningInfoRequestHeader(consumer_group="g", client_id="me", jstack_enable=False),
)
STATUS = RemotingCommand.request(
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, h.GetConsumerStatusRequestHeader(topic="T", group="g")
)


def reset_to(offsets: Any, topic: Any = "T", body: Any = None) -> Any:
    header = h.ResetOffsetRequestHeader(topic=topic, group="g", timestamp=1, is_force=False)
    data = ResetOffsetBody(offsets).to_json() if body is None else body
    return RemotingCommand.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, data)


RECORD = a_record(queue_offset=3, physical_offset=3000, body=b"by hand", properties={"TAGS": "t"})


def consume(body: Any = None, broker_name: Any = "a") -> Any:
    header = h.ConsumeMessageDirectlyResultRequestHeader(
        consumer_group="g", client_id="me", msg_id="X", broker_name=broker_name
    )
    data = encode_record(RECORD) if body is None else body
    return RemotingCommand.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, data)


def peer_of(member: Member) -> Any:
    return MemberRequests(lambda: member.core, lambda: "stacks")


def ask(member: Member, request: Any) -> Any:
    """The answer to `request`, which needs no time."""
    return member.world.result(peer_of(member).answer(attrs.evolve(request, opaque=9)))


def committed(world: World, queue: Any = Q) -> Any:
    return world.cluster.offsets.get(("g", queue))


def pulled_from(world: World, queue: Any = Q) -> Any:
    pulls = (r.ext_fields for r in world.faults.asked(RequestCode.PULL_MESSAGE))
    return [int(f["queueOffset"]) for f in pulls if f["topic"] == queue.topic]


def fill(world: World, count: Any) -> None:
    for n in range(count):
        world.cluster.store(Q, b"%d" % n)
