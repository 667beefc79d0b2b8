"""Settings of sockets and intervals: what they come to."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from twisted.internet.testing import MemoryReactorClock

from mqbroker.broker.broker_service import make_broker
from mqbroker.config import ClientSettings
from tests.broker.bench import Bench, make_settings


@pytest.mark.parametrize("seconds", [0.05, 7])
def test_progress_of_delayed_messages_is_kept_as_often_as_is_set(
    make_bench: Callable[..., Bench], seconds: float
) -> None:
    bench = make_bench(store={"flush_delay_offset_interval_ms": int(seconds * 1000)})
    assert (seconds, bench.parts.delay.persist) in bench.parts.periodic()


@pytest.mark.parametrize("use_tls", [False, True])
def test_connections_to_name_servers_are_given_up_when_that_is_set(tmp_path: Path, use_tls: bool) -> None:
    client = ClientSettings(connect_timeout_ms=1250, use_tls=use_tls)
    broker = make_broker(make_settings(tmp_path, client=client), MemoryReactorClock(), Random(1))
    endpoint = broker._own_connector()("127.0.0.1", 9876)
    plain: Any = cast(Any, endpoint)._wrappedEndpoint if use_tls else endpoint
    assert plain._timeout == 1.25
