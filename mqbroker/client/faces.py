"""What the three faces share: where a client's methods find the core that does the work.

A face makes its methods from the cores' coroutines, one line each, by its own `call`: `send = call(ProducerCore.send,
started)`. Parameters, types and docstrings are the core's.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from mqbroker.client.producer import ProducerCore
from mqbroker.client.transactions import TransactionCore

#: The core of a client.
core = attrgetter("_core")
#: The offset requests of a pull consumer's core.
offsets = attrgetter("_core.offsets")
#: The questions of any client's core.
queries = attrgetter("_core.queries")


def started(client: Any) -> ProducerCore:
    """The core of a producer. Raises ClientClosed if it is not started, or was closed."""
    producer: ProducerCore = core(client)
    return producer.started()


def transactions(client: Any) -> TransactionCore:
    """As `started`, of a producer of transactions."""
    started(client)
    found: TransactionCore = core(client)
    return found


class Named:
    """Shows a client by its kind and group."""

    _group: str

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} of group {self._group}>"
