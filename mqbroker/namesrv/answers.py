"""Routes as clients read them: encoded once for all topics that lie alike, and kept until the brokers change."""

from __future__ import annotations

import struct

import attrs
import orjson

from mqbroker.namesrv.placements import Placement
from mqbroker.namesrv.routes import RouteTable
from mqbroker.remoting.handlers import IConnection
from mqbroker.wire.bodies import TopicRouteData
from mqbroker.wire.codes import ResponseCode
from mqbroker.wire.command import RESPONSE_FLAG, RemotingCommand, encode_command

#: So many are kept at most, each a few hundred bytes for each broker; then all are made anew as they are asked for.
KEPT_MAX = 4096

_LENGTHS = struct.Struct(">II")
_OPAQUE = 2**30
_HEAD, _TAIL = (
    encode_command(RemotingCommand(ResponseCode.SUCCESS, opaque=_OPAQUE, flag=RESPONSE_FLAG))[8:].split(b"%d" % _OPAQUE)
)  # fmt: skip


class RouteBodies:
    """Bodies of answers to GET_ROUTEINFO_BY_TOPIC."""

    def __init__(self, routes: RouteTable[IConnection]) -> None:
        self._routes = routes
        self._kept: dict[tuple[Placement, bool], bytes] = {}
        self._brokers_version = -1

    def body(self, topic: str | None, strict: bool, order_conf: str | None = None) -> bytes | None:
        """The route of `topic`, as strict JSON or in the dialect; None where no broker has it."""
        placement = self._routes.placement(topic) if topic is not None else None
        if placement is None:
            return None
        if order_conf is not None:
            return self._encoded(placement, strict, order_conf)
        if self._brokers_version != self._routes.brokers_version or len(self._kept) >= KEPT_MAX:
            self._kept.clear()
            self._brokers_version = self._routes.brokers_version
        body = self._kept.get((placement, strict))
        if body is None:
            body = self._kept[placement, strict] = self._encoded(placement, strict, None)
        return body

    def _encoded(self, placement: Placement, strict: bool, order_conf: str | None) -> bytes:
        route = attrs.evolve(self._routes.route_by(placement), order_topic_conf=order_conf)
        return encode_route(route, strict)


def success_parts(opaque: int, body: bytes) -> tuple[bytes, bytes, bytes]:
    """The parts of a frame that answers a request with JSON headers well, and says nothing but its body."""
    header = b"%b%d%b" % (_HEAD, opaque, _TAIL)
    return _LENGTHS.pack(4 + len(header) + len(body), len(header)), header, body


def encode_route(route: TopicRouteData, strict: bool) -> bytes:
    """In the dialect; or as strict JSON, with quoted numeric keys, sorted as in Java."""
    if not strict:
        return route.to_json()
    return orjson.dumps(route.to_value(), option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS)
