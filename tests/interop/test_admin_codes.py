"""Codes of administration that no mqadmin command sends: the same answers of both kinds of brokers."""

import re
from functools import partial
from typing import Any, get_args

from mqbroker.wire import fastjson
from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.interop.fleet import Fleet, Kind
from tests.interop.processes import ProcessFailed, eventually
from tests.interop.raw import Line, create_topic, request, send
from tests.interop.traffic import consumer, wait_committed

TOPIC, ONLINE = "Administered", "OnlineGroup"
#: A Java consumer that is reset pauses for 10 s, and has its queues again at its next look at them, every 20 s.
_RESET_S = 40.0


def ask(line: Line, code: int, **fields: Any) -> tuple[int, str | None, str]:
    """An answer with all masked that is of one run, and map keys and lists in one order."""
    [answer] = line.ask([request(code, **fields)])
    body = ordered(fastjson.loads(answer.body)) if answer.body else ""
    masked = re.sub(r"\b1[0-9]{12}\b", "<ms>", str(body))
    for of_one_run in (
        r"(?<='delayTime': )[1-9]\d*",
        # The same times once more, as a person reads them: its clients do not read them.
        r"(, )?'\w+Str': '[^']*'",
        # Its consumer commits this sooner or later.
        r"'%RETRY%\w+@\w+': {'0': 0}, ",
    ):
        masked = re.sub(of_one_run, "", masked)
    return answer.code, answer.remark if answer.code else None, masked


def ordered(value: object) -> object:
    if isinstance(value, fastjson.JsonKey):
        return str(value.fields)
    if isinstance(value, dict):
        return {str(ordered(key)): ordered(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list):
        return sorted((ordered(item) for item in value), key=str)
    return value


def is_known(line: Line) -> bool:
    return line.one(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=ONLINE).code == ResponseCode.SUCCESS


def reset(line: Line) -> tuple[int, str | None, str]:
    return ask(line, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic=TOPIC, group=ONLINE, timestamp=0, isForce=True)


def answers(fleet: Fleet, kind: Kind) -> dict[str, str]:
    namesrv = fleet.namesrv(kind)
    broker = fleet.broker(kind, namesrv, brokerName="broker-a")
    line = Line(broker.addr)
    line.ask_well([create_topic(TOPIC, 2)])
    line.ask_well([send(TOPIC, 0, b"%d" % n, {}) for n in range(6)])
    for group, offset in (("A", 4), ("B", 2)):
        for queue_id in (0, 1):
            line.one(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                consumerGroup=group,
                topic=TOPIC,
                queueId=queue_id,
                commitOffset=offset if queue_id == 0 else 0,
            )
    online = consumer(fleet, namesrv, TOPIC, ONLINE, instance=f"online-{kind}", persist_ms=100)
    online.wait_events("message", 6)
    wait_committed(broker, ONLINE, TOPIC, queues=2, count=6)
    eventually("the group is known", partial(is_known, line))
    client_id = online.events("started")[0]["clientId"]
    found = {
        "time span": ask(line, RequestCode.QUERY_CONSUME_TIME_SPAN, topic=TOPIC, group="A"),
        "no time span": ask(line, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="Nobody", group="A"),
        "correction": ask(line, RequestCode.QUERY_CORRECTION_OFFSET, topic=TOPIC, compareGroup="A"),
        "status": ask(line, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic=TOPIC, group=ONLINE),
        "clone": ask(line, RequestCode.CLONE_GROUP_OFFSET, srcGroup="A", destGroup="C", topic=TOPIC, offline=True),
        "offsets": ask(line, RequestCode.GET_ALL_CONSUMER_OFFSET),
        "delay": ask(line, RequestCode.GET_ALL_DELAY_OFFSET),
        "reset": reset(line),
    }
    try:
        online.wait_events("message", 12, _RESET_S)  # it goes on at the beginning
    except ProcessFailed:
        # Unless an offset that its client was committing meanwhile came last.
        reset(line)
        online.wait_events("message", 12)
    found["nobody"] = ask(
        line, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic=TOPIC, group="A", timestamp=-1, isForce=True
    )
    line.close()
    return {name: str(value).replace(client_id, "<client id>") for name, value in found.items()}


def test_the_same_answers(fleet: Fleet) -> None:
    ours, java = (answers(fleet, kind) for kind in get_args(Kind))
    assert ours == java
    assert "<client id>" in ours["status"]
