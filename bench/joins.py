"""How many messages come twice where a member joins a group, and where it leaves: of our clients, and of Java's."""

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from bench.clients import Client, client, servers
from bench.rmqload import LoadFailed
from bench.servers import Bench, Kind
from bench.table import Table

#: (messages a second, what the listener takes for one, ms)
LOADS = ((2_000, 5), (200, 100))
QUEUES = 8
#: Seconds after which a third member joins, and leaves, and after which the load ends.
JOIN_S, LEAVE_S, END_S = 6, 12, 18
#: Messages that come twice, in seconds of the load: Java's were once measured at 0.07.
WANTED_S = 0.07


def compare(bench: Bench, table: Table, kinds: Sequence[Kind], rounds: int) -> None:
    """Print, for each client, the seconds of load that came twice at each join and each leave."""
    with ExitStack() as running:
        name_server = running.enter_context(servers(bench))
        producer = running.enter_context(client(bench, "asyncio", name_server))
        names = [name for kind in kinds for name in (("asyncio", "blocking") if kind == "ours" else (kind,))]
        table.head(f"{'delivered twice, s of load':28}at joins, at leaves")
        for name, (rate, took_ms) in itertools.product(names, LOADS):
            with ExitStack() as members:
                three = [members.enter_context(client(bench, name, name_server, n)) for n in (1, 2, 3)]
                topics = [f"joins-{name}-{rate}-{n}" for n in range(rounds)]
                found = [_measure(producer, three, topic, rate, took_ms) for topic in topics]
            row = f"{name}, {rate:,}/s, {took_ms} ms"
            cells = "".join(f"{at_join:8.3f}" for at_join, _ in found) + "  "
            cells += "".join(f"{at_leave:8.3f}" for _, at_leave in found)
            highest = max(max(pair) for pair in found)
            if name == "java":
                table.row(f"{row:28}", cells)
            else:
                table.wanted_row(f"{row:28}", cells, highest, below=WANTED_S)


def _measure(producer: Client, members: Sequence[Client], topic: str, rate: int, took_ms: int) -> tuple[float, float]:
    """The seconds of load that came twice at the join, and at the leave. Raises LoadFailed if any message is lost."""
    producer.order(f"topic {topic} 0 {QUEUES}")
    first, second, third = members
    for each in (first, second):
        each.order(f"join {topic} 0 {topic} {took_ms}")
    time.sleep(1)  # the first one gives half of the queues up
    count = rate * END_S
    numbers = producer.begin(f"pace {topic} {count} {rate}")
    time.sleep(JOIN_S)
    third.order(f"join {topic} 0 {topic} {took_ms}")
    time.sleep(LEAVE_S - JOIN_S)
    seen: Counter[int] = Counter(third.order(f"leave {topic} 0")["seen"])
    producer.finish(numbers)
    time.sleep(2)
    for each in (first, second):
        seen.update(each.order(f"leave {topic} 0")["seen"])
    start = min(seen)
    if lost := [number for number in range(start, start + count) if number not in seen]:
        raise LoadFailed(f"{len(lost)} messages of {topic} were lost, such as {lost[0]}")
    border = start + rate * (JOIN_S + LEAVE_S) // 2
    twice = {number: times - 1 for number, times in seen.items() if times > 1}
    at_join = sum(times for number, times in twice.items() if number < border)
    return at_join / rate, (sum(twice.values()) - at_join) / rate
