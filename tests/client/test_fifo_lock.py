"""The lock of the asyncio face: order, and how many go on in a turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mqbroker.client import loop as loops
from mqbroker.client.loop import FifoLock


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run(main: Callable[[FifoLock, list[Any]], Coroutine[Any, Any, None]]) -> None:
    async def with_lock() -> None:
        lock = FifoLock(asyncio.get_running_loop)
        await asyncio.wait_for(main(lock, []), 10)
        assert lock.is_empty
        assert not lock._places

    asyncio.run(with_lock())


def taker(lock: FifoLock, got: list[Any]) -> Callable[[Any], asyncio.Task[None]]:
    """Starts a task that takes the lock, notes its name and releases it at once."""

    async def take(name: Any) -> None:
        async with lock:
            got.append(name)

    return lambda name: asyncio.create_task(take(name))


def test_it_is_held_by_one() -> None:
    async def main(lock: FifoLock, got: list[Any]) -> None:
        async def hold(name: int) -> None:
            async with lock:
                got.append(("begins", name))
                await turns(3)
                got.append(("ends", name))

        await asyncio.gather(*(hold(name) for name in range(4)))
        assert got == [(what, name) for name in range(4) for what in ("begins", "ends")]

    run(main)


def test_where_each_holder_suspends_few_wake_up_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[object] = []
    wake = loops._Place.wake
    monkeypatch.setattr(loops._Place, "wake", lambda place: woken.append(place) or wake(place))

    async def main(lock: FifoLock, got: list[Any]) -> None:
        async def hold(name: int) -> None:
            async with lock:
                await turns(2)
                got.append(name)

        await asyncio.gather(*(hold(name) for name in range(500)))
        assert got == list(range(500))
        assert len(woken) < 500 + 3 * 500

    run(main)


def test_all_that_wait_go_on_in_one_turn_in_order_and_others_behind_them() -> None:
    async def main(lock: FifoLock, got: list[Any]) -> None:
        take = taker(lock, got)
        async with lock:
            waiting = [take(name) for name in range(100)]
            await turns(2)
            assert not lock.is_empty
        late = [take(name) for name in range(100, 110)]
        await turns(1)
        assert got == list(range(110)), "all in one turn"
        late += [take(name) for name in range(110, 120)]
        await asyncio.gather(*waiting, *late)
        assert got == list(range(120))

    run(main)


def test_a_line_to_which_one_comes_for_each_that_goes_on_ends() -> None:
    async def main(lock: FifoLock, got: list[Any]) -> None:
        async def come_again() -> None:
            for _ in range(20):
                got.append(lock.is_empty)
                async with lock:
                    pass
                await turns(1)

        async with lock:
            tasks = [asyncio.create_task(come_again()) for _ in range(50)]
            await turns(2)
        await asyncio.gather(*tasks)
        assert got.count(False) < 3 * 50

    run(main)


@pytest.mark.parametrize("awake_max", [1, 2, 5])
def test_where_more_wait_than_are_woken_up_at_once_all_go_on_in_order(
    monkeypatch: pytest.MonkeyPatch, awake_max: int
) -> None:
    monkeypatch.setattr(loops, "AWAKE_MAX", awake_max)

    async def main(lock: FifoLock, got: list[Any]) -> None:
        take = taker(lock, got)
        async with lock:
            waiting = [take(name) for name in range(30)]
            await turns(2)
        waiting += [take(name) for name in range(30, 35)]
        for name in (3, 4, 5, 20, 29, 34):
            waiting[name].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert got == [name for name in range(35) if name not in (3, 4, 5, 20, 29, 34)]

    run(main)


@pytest.mark.parametrize("awake_max", [1, 5])
def test_who_is_cancelled_when_it_is_its_turn_lets_the_next_one_go_on(
    monkeypatch: pytest.MonkeyPatch, awake_max: int
) -> None:
    monkeypatch.setattr(loops, "AWAKE_MAX", awake_max)

    async def main(lock: FifoLock, got: list[Any]) -> None:
        take = taker(lock, got)
        async with lock:
            first, second = take("first"), take("second")
            await turns(2)
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert got == ["second"]

    run(main)


def test_an_error_releases_it() -> None:
    async def main(lock: FifoLock, got: list[Any]) -> None:
        with pytest.raises(ZeroDivisionError):
            async with lock:
                got.append(1 // 0)
        await taker(lock, got)("next")
        assert got == ["next"]

    run(main)
