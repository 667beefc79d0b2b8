"""What clients of one topic were told, and whether that holds in the end. Knows nothing of brokers or clients."""

import os
from collections.abc import Mapping, Sequence
from statistics import median

import attrs

from tests.interop.processes import Event

#: Queue id and offset.
Place = tuple[int, int]


class Violation(AssertionError):
    """What clients were told does not hold; the message says which of it."""


def place_of(event: Event) -> Place:
    return event["queueId"], event["queueOffset"]


def check(
    acknowledged: Sequence[Event],
    read: Mapping[str, Sequence[Event]],
    found: Mapping[Place, str],
    epochs: Sequence[int],
) -> None:
    """Compare what producers were told, and what each consumer has read from the beginning on, with the digests that
    are `found` at their places in the end; `epochs`: each time that a broker was elected. Raises Violation."""
    here = set(found.values())
    lost = [event for event in acknowledged if event["sha256"] not in here]
    _require("acknowledged messages are missing", lost, acknowledged)
    moved = [event for event in acknowledged if found.get(place_of(event)) != event["sha256"]]
    _require("acknowledged messages are at another place", moved, acknowledged)
    for name, events in read.items():
        gone = [event for event in events if found.get(place_of(event)) != event["sha256"]]
        _require(f"messages that {name} has read are not at their places", gone, events)
        skipped = skipped_by(events, acknowledged)
        _require(f"acknowledged messages were skipped by {name}", skipped, acknowledged)
    twice = sorted({epoch for epoch in epochs if epochs.count(epoch) > 1})
    if twice:
        raise Violation(f"epochs with more than one master: {twice}")


def skipped_by(events: Sequence[Event], acknowledged: Sequence[Event]) -> list[Event]:
    """Which acknowledged messages a consumer did not get."""
    places = {place_of(event) for event in events}
    return [event for event in acknowledged if place_of(event) not in places]


def _require(what: str, events: Sequence[Event], of: Sequence[Event]) -> None:
    if events:
        places = ", ".join("{}:{}".format(*place_of(event)) for event in events[:5])
        raise Violation(f"{what}: {len(events)} of {len(of)}, such as {places} (queue:offset)")


@attrs.frozen
class Pause:
    """The longest time without SEND_OK for any producer of a kind, seconds, from one fault up to the next."""

    fault: str
    producers: str
    seconds: float


def longest_pause_s(times: Sequence[float], begin: float, end: float) -> float:
    """The longest time between two of the sorted `times` that overlaps with the time from `begin` to `end`."""
    pairs = zip([begin, *times], [*times, end], strict=True)
    return max((later - earlier for earlier, later in pairs if later > begin and earlier < end), default=0.0)


def bound_here_s(seconds: float) -> float:
    """A bound of pauses on this machine, where it is `seconds` on one that has a core for each process that wants one:
    in proportion to how many want each core."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def pause_lines(pauses: Sequence[Pause]) -> list[str]:
    """A table: of each kind of fault how often it came, and the median and maximum of its pauses."""
    groups: dict[tuple[str, str], list[float]] = {}
    for pause in pauses:
        groups.setdefault((pause.fault, pause.producers), []).append(pause.seconds)
    lines = [f"{'fault':28} {'producers':9} times  median     max"]
    for (fault, producers), found in sorted(groups.items()):
        lines.append(f"{fault:28} {producers:9} {len(found):5} {median(found):6.1f}s {max(found):6.1f}s")
    return lines
