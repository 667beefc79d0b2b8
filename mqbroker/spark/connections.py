"""The clients of this process: one for each set of name servers and account, shared by tasks and triggers.

Spark reuses its Python workers, so that a client's connections and routes serve the next task too. A client itself
drops a connection that failed or has pending responses; idle ones are always clean.
"""

from __future__ import annotations

from functools import cache

from mqbroker.client.blocking import PullConsumer
from mqbroker.client.options import PullOptions
from mqbroker.client.tls import ClientTls
from mqbroker.spark.options import SourceOptions
from mqbroker.wire.signature import Credentials

_PULL_TIMEOUT_MS = 15_000
#: How soon a stream notices new queues, and brokers that came back.
_ROUTE_AGE_S = 10.0


def client_for(options: SourceOptions) -> PullConsumer:
    """The client of this process for `options`; it connects when it is used."""
    return _client(options.name_servers, options.group, options.credentials, options.tls)


@cache
def _client(
    name_servers: tuple[str, ...], group: str, credentials: Credentials | None, tls: ClientTls | None
) -> PullConsumer:
    options = PullOptions(credentials=credentials, tls=tls, pull_timeout_ms=_PULL_TIMEOUT_MS, route_age_s=_ROUTE_AGE_S)
    return PullConsumer(name_servers, group, options=options)
