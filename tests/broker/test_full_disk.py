"""What a broker on a full disk still does, and how it says no."""

from collections.abc import Callable

import pytest

from mqbroker.wire.codes import RequestCode, ResponseCode
from tests.broker.bench import Bench, Client
from tests.broker.sending import one
from tests.broker.test_client_requests import commit
from tests.broker.test_pull import bodies


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """No disk has so many bytes free; nobody has looked yet."""
    return make_bench(store={"disk_free_bytes_min": 2**60})


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_sends_are_refused_and_all_else_goes_on(bench: Bench, client: Client, code: int) -> None:
    assert one(client.send(code=code, body=b"before")).code == 0
    bench.turn(1.5)
    refused = one(client.send(code=code))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    start = "service not available now. the broker's disk is full [CL: "
    assert refused.remark.startswith(start)
    assert refused.remark[len(start) :].startswith(f"{bench.store.stats.log_disk_percent / 100:5.2f} CQ: ")
    for part in ("commitlog", "diskFreeBytesMin", "free space"):
        assert part in (refused.remark or "")
    assert bodies(client.pull()) == [b"before"]
    assert commit(client, 1).code == 0
    assert bench.offsets.query("CG", "T", 0) == 1
