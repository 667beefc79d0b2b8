"""What the import of a client loads."""

import json
import subprocess
import sys

import pytest

from tests.client.loopback import Loopback

#: Besides Python's own. YAML and what daemons and commands need are not among them.
ALLOWED = {"attr", "attrs", "cython_runtime", "mqbroker", "orjson"}
#: Twisted, and what it loads itself where it is installed.
TWISTED = {
    "OpenSSL", "constantly", "cryptography", "hyperlink", "idna", "incremental", "service_identity", "twisted",
    "typing_extensions", "zope",
}  # fmt: skip
#: Parts of the package that no client is made of.
SERVERS = {"access", "broker", "cli", "daemons", "ha", "namesrv", "spark", "store"}
MODULES_MAX = {"deferred": 560}

PROGRAM = """
import json, sys
before = set(sys.modules)
import {module}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize("module", ["client", "client.aio", "client.blocking", "client.deferred"])
def test_an_import_loads_no_more_than_it_uses(module: str) -> None:
    program = PROGRAM.format(module=f"mqbroker.{module}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = json.loads(done.stdout)
    others = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    allowed = ALLOWED | (TWISTED if module == "client.deferred" else set())
    assert {name for name in others if not name.startswith("_")} <= allowed
    assert {name.split(".")[1] for name in loaded if name.startswith("mqbroker.")} & SERVERS == set()
    assert len(loaded) <= MODULES_MAX.get(module.partition(".")[2], 330)


USE = """
import sys
from mqbroker.client import Message, PushOptions
from mqbroker.client.blocking import Producer, PullConsumer, PushConsumer

before = set(sys.modules)
port = sys.argv[1].rpartition(":")[2]
with Producer(f"localhost:{port}", "pg") as producer, PullConsumer(sys.argv[1], "cg") as consumer:
    producer.send(Message("T", b"x"))
    producer.send_async(Message("T", bytes(100_000))).result()
    (queue,) = consumer.queues("T")
    assert [message.body for message in consumer.pull(queue, 0).messages] == [b"x", bytes(100_000)]
    member = PushConsumer(sys.argv[1], "g", lambda message: None, options=PushOptions(suspend_s=0))
    member.subscribe("T")
    member.start()
    member.close()
print(sorted(set(sys.modules) - before))
"""


def test_threads_of_the_blocking_clients_import_nothing(server: Loopback) -> None:
    """A child that is forked meanwhile would wait for that import for ever."""
    server.add_topic("T", queues=1)
    server.add_topic("%RETRY%g", queues=1)
    done = subprocess.run(
        [sys.executable, "-c", USE, server.addr], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
