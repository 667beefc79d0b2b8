"""One client of a process for each way to the servers: who asks, and how it is encrypted, count."""

import pytest

from mqbroker.spark import connections
from mqbroker.spark.options import parse_options

GOOD = {"nameServer": "127.0.0.1:9876", "topic": "orders"}


@pytest.fixture(autouse=True)
def none_before() -> None:
    connections._client.cache_clear()


@pytest.mark.parametrize(
    "other", [{"accessKey": "a", "secretKey": "b"}, {"tls": "true"}, {"consumerGroup": "g"}, {"nameServer": "h:1"}]
)
def test_queries_that_differ_in_it_share_no_client(other: dict[str, str]) -> None:
    first = connections.client_for(parse_options(GOOD, streaming=False))
    assert connections.client_for(parse_options(GOOD | {"topic": "bills"}, streaming=True)) is first
    assert connections.client_for(parse_options(GOOD | other, streaming=False)) is not first


def test_a_client_has_the_account_and_the_encryption() -> None:
    given = GOOD | {"accessKey": "a", "secretKey": "b", "tlsInsecure": "true"}
    wanted = parse_options(given, streaming=False)
    client = connections.client_for(wanted)
    assert (client._options.credentials, client._options.tls) == (wanted.credentials, wanted.tls)
    assert wanted.credentials is not None
