"""Routes as clients read them: encoded once for all topics that lie alike, and kept until the brokers change."""

from __future__ import annotations

import attrs
import orjson

from mqbroker.namesrv.placements import Placement
from mqbroker.namesrv.routes import RouteTable
from mqbroker.remoting.handlers import IConnection
from mqbroker.wire.bodies import TopicRouteData

#: So many are kept at most, each a few hundred bytes for each broker; then all are made anew as they are asked for.
KEPT_MAX = 4096


class RouteBodies:
    """Bodies of answers to GET_ROUTEINFO_BY_TOPIC."""

    def __init__(self, routes: RouteTable[IConnection]) -> None:
        self._routes = routes
        self._kept: dict[tuple[Placement, bool], bytes] = {}
        self._brokers_version = -1

    def body(self, topic: str, *, strict: bool, order_conf: str | None = None) -> bytes | None:
        """The route of `topic`, as strict JSON or in the dialect; None where no broker has it."""
        placement = self._routes.placement(topic)
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
        return _strict_json(route) if strict else route.to_json()


def _strict_json(route: TopicRouteData) -> bytes:
    """With quoted numeric keys, sorted as in Java."""
    return orjson.dumps(route.to_value(), option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS)
