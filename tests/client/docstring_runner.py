"""Run the samples in the docstrings of an API beside a broker in memory: `python -m tests.client.docstring_runner aio`.

What they print is printed. A sample that would run until a signal gets one when it prints something.
"""

import asyncio
import importlib
import inspect
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import mqbroker.client
from mqbroker.client import Message
from mqbroker.client.blocking import Producer
from mqbroker.client.testing import InMemoryBroker


def samples_of(documented: Any) -> Iterator[str]:
    """The literal blocks of a docstring."""
    for found in re.finditer(r"::\n\n((?:(?: {4}.*)?\n)+)", inspect.getdoc(documented) + "\n"):
        yield textwrap.dedent(found[1])


def told(line: Any, *, has_signal: bool) -> None:
    print(line, flush=True)
    if has_signal:
        os.kill(os.getpid(), signal.SIGINT)


def functions(name: str) -> Iterator[Callable[[], Any]]:
    """A function of each sample, whose broker has a message."""
    api = importlib.import_module(f"mqbroker.client.{name}")
    names = {each: getattr(mqbroker.client, each) for each in mqbroker.client.__all__}
    names |= {each: getattr(api, each) for each in api.__all__}
    samples = [sample for each in (api, *map(names.get, api.__all__)) for sample in samples_of(each)]
    for text in sorted(samples, key=lambda sample: ".run()" in sample):  # last: a signal ends Twisted's reactor, too
        with InMemoryBroker() as broker:
            with Producer(broker.name_servers, "test") as producer:
                producer.send(Message("orders", b"sent", tags="sent"))
            keyword = "async def" if "await" in text else "def"
            source = f"{keyword} sample():\n{textwrap.indent(text, '    ')}"
            has_signal = ".run()" in text
            space: dict[str, Any] = names | {"print": lambda line, last=has_signal: told(line, has_signal=last)}
            if name == "deferred":
                from twisted.internet import reactor

                space["reactor"] = reactor
            exec(compile(source.replace("127.0.0.1:9876", broker.name_servers), f"<{name}>", "exec"), space)
            yield space["sample"]


def main(name: str) -> None:
    if name == "deferred":
        from twisted.internet.defer import Deferred, ensureDeferred, inlineCallbacks
        from twisted.internet.task import react

        async def run_all() -> None:
            for sample in functions(name):
                await (inlineCallbacks(sample)() if inspect.isgeneratorfunction(sample) else ensureDeferred(sample()))

        react(lambda _: Deferred.fromCoroutine(run_all()))
    for sample in functions(name):
        if name == "aio":
            asyncio.run(sample())
        else:
            sample()


if __name__ == "__main__":
    main(sys.argv[1])
