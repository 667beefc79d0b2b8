"""The clients of this process: one for each set of name servers and account, shared by tasks and triggers.

Spark reuses its Python workers, so that a client's connections and routes serve the next task too. A client itself
drops a connection that failed or has pending responses; idle ones are always clean.
"""

from __future__ import annotations

from collections.abc import Hashable

from mqbroker.client.blocking import PullConsumer
from mqbroker.client.options import PullOptions
from mqbroker.spark.options import SourceOptions

_PULL_TIMEOUT_MS = 15_000
#: How soon a stream notices new queues, and brokers that came back.
_ROUTE_AGE_S = 10.0

_clients: dict[tuple[Hashable, ...], PullConsumer] = {}


def client_for(options: SourceOptions) -> PullConsumer:
    """The client of this process for `options`; it connects when it is used."""
    key = options.name_servers, options.group, options.credentials, options.tls
    client = _clients.get(key)
    if client is None:
        pull_options = PullOptions(
            credentials=options.credentials,
            tls=options.tls,
            pull_timeout_ms=_PULL_TIMEOUT_MS,
            route_age_s=_ROUTE_AGE_S,
        )
        client = _clients[key] = PullConsumer(options.name_servers, options.group, options=pull_options)
    return client
