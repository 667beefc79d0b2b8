"""The checker of histories finds each kind of fault in a history that has it, and none in one that holds."""

import os
from collections.abc import Callable

import pytest

from tests.interop.history import Pause, Violation, bound_here_s, check, longest_pause_s, pause_lines
from tests.interop.processes import Event


def event(queue_id: int, offset: int, digest: str) -> Event:
    return {"queueId": queue_id, "queueOffset": offset, "sha256": digest}


class Told:
    """A history that holds: three messages were acknowledged and read, and one was stored that nobody acknowledged."""

    def __init__(self) -> None:
        self.acknowledged = [event(0, 0, "a"), event(0, 1, "b"), event(1, 0, "c")]
        self.read = [*self.acknowledged, event(1, 1, "d")]
        self.found = {(0, 0): "a", (0, 1): "b", (1, 0): "c", (1, 1): "d"}
        self.epochs = [1, 2, 3]

    def check(self) -> None:
        check(self.acknowledged, {"a consumer": self.read}, self.found, self.epochs)


FAULTS: dict[str, Callable[[Told], object]] = {
    "acknowledged messages are missing: 1 of 3, such as 0:1": lambda told: told.found.pop((0, 1)),
    "acknowledged messages are at another place": lambda told: told.found.update({(0, 1): "c", (1, 0): "b"}),
    "that a consumer has read are not at their places: 1 of 4, such as 1:1": lambda told: told.found.pop((1, 1)),
    "were skipped by a consumer: 1 of 3, such as 0:0": lambda told: told.read.pop(0),
    r"more than one master: \[2\]": lambda told: told.epochs.append(2),
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_fault_is_told_with_its_place(message: str) -> None:
    told = Told()
    told.check()
    FAULTS[message](told)
    with pytest.raises(Violation, match=message):
        told.check()


def test_a_message_may_be_read_again() -> None:
    told = Told()
    told.read += told.read
    told.check()


def test_the_longest_pause_is_the_one_that_overlaps_with_the_fault() -> None:
    times = [0.0, 5.0, 5.5, 8.0, 8.5, 20.0]
    assert longest_pause_s(times, 5.2, 8.2) == 2.5
    assert longest_pause_s(times, 8.6, 10.0) == 11.5
    assert longest_pause_s(times, 20.5, 23.0) == 3.0
    assert longest_pause_s([], 1.0, 4.0) == 3.0


@pytest.mark.parametrize(("load", "bound_s"), [(0.1, 8.0), (2.0, 8.0), (3.0, 12.0), (20.0, 80.0)])
def test_a_pause_may_be_longer_where_processes_wait_for_cores(
    monkeypatch: pytest.MonkeyPatch, load: float, bound_s: float
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert bound_here_s(8.0) == bound_s


def test_pauses_are_shown_by_kind_of_fault_with_median_and_maximum() -> None:
    pauses = [Pause("kill", "java", seconds) for seconds in (1.0, 2.0, 9.0)]
    assert pause_lines(pauses)[1].split() == ["kill", "java", "3", "2.0s", "9.0s"]
