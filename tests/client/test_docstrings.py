"""The samples in docstrings run: those of an API, each beside a broker that has one message, and of other modules."""

import subprocess
import sys
from importlib import import_module
from typing import Any

import attrs
import pytest

from mqbroker.client import Json, Message, Topic, aio, testing
from mqbroker.client.blocking import Producer
from mqbroker.client.testing import InMemoryBroker
from tests.client.docstring_runner import samples_of

APIS = ["aio", "blocking", "deferred"]


@pytest.mark.parametrize("name", APIS)
def test_the_samples_of_an_api_run(name: str) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.client.docstring_runner", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    # Of four queues three are empty.
    lines = ["TransactionState.COMMIT", *["[]"] * 3, "[b'sent']", "b'sent'", "b'sent'"]
    assert (sorted(done.stdout.splitlines()), done.stderr, done.returncode) == (sorted(lines), "", 0)


@pytest.mark.parametrize("name", aio.__all__)
def test_each_client_has_a_sample_on_each_api(name: str) -> None:
    for api in (import_module(f"mqbroker.client.{each}") for each in APIS):
        [sample] = samples_of(api if name == "Producer" else getattr(api, name))
        assert f"{name}(" in sample


def run(sample: str, **names: Any) -> dict[str, Any]:
    exec(compile(sample, "sample", "exec"), names)
    return names


def test_the_sample_of_the_broker_in_memory_runs() -> None:
    [sample] = samples_of(testing)
    run(sample, InMemoryBroker=InMemoryBroker, Producer=Producer, Message=Message)["test_orders_are_stored"]()


def test_the_sample_of_topics_with_types_runs() -> None:
    @attrs.frozen
    class Order:
        id: str
        count: int

    [sample] = samples_of(Topic)
    with InMemoryBroker() as broker, Producer(broker.name_servers, "orders-app") as producer:
        producer.send(Message("orders", b'{"id":"o-1","count":3}'))
        [received] = broker.messages("orders")
        found = run(sample, Topic=Topic, Json=Json, Order=Order, producer=producer, received=received)
        assert found["order"] == Order("o-1", 3)
        assert len(broker.messages("orders")) == 2
