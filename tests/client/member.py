"""A push consumer of group g in the world of `conftest`, with a listener that notes what it gets."""

from typing import Any

from mqbroker.client import ConsumeFrom, PushOptions
from mqbroker.client.push_consumer import PushConsumerCore
from mqbroker.wire.bodies import MessageQueue
from tests.client.world import FixedIdentity, World

A, B = "10.0.0.2:10911", "10.0.0.3:10911"
Q = MessageQueue("T", "a", 0)
RETRY = MessageQueue("%RETRY%g", "a", 0)


class Member:
    """A push consumer with a listener that notes what it gets."""

    def __init__(self, world: World, name_server: str, me: Any = "me", listener: Any = None, **options: Any) -> None:
        self.world = world
        self.got: list[Any] = []
        self.listener = listener
        options.setdefault("consume_from", ConsumeFrom.FIRST)
        self.core = PushConsumerCore(
            world.net(), (name_server,), "g", self.listen, PushOptions(**options), FixedIdentity(me)
        )

    def listen(self, message: Any) -> Any:
        self.got.append(message)
        return self.listener(message) if self.listener else None

    @property
    def bodies(self) -> Any:
        return [message.body for message in self.got]

    def start(self, expression: Any = "*", topic: Any = "T") -> Any:
        self.world.result(self.core.subscribe(topic, expression))
        self.world.result(self.core.start())
        return self
