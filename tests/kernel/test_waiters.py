"""The compiled module's futures, beside those of asyncio: the same for a task that awaits them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mqbroker.client.messages import SendResult, SendStatus
from mqbroker.kernel import compiled
from mqbroker.wire.bodies import MessageQueue

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not there")

WHOLE = SendResult(SendStatus.SEND_OK, "all", "0A,0B,0C", MessageQueue("T", "a", 0), 7)


def on_both(use: Callable[[Callable[[], Any]], Any]) -> list[Any]:
    """What `use`, a coroutine function, returns where it makes futures of asyncio, and of the compiled module."""
    assert compiled is not None

    async def main(kind: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await use(loop.create_future if kind is None else lambda: kind(loop))

    return [asyncio.run(main(None)), asyncio.run(main(compiled.Waiter))]


async def awaited(waiter: Any, steps: list[str] | None = None, name: str = "") -> Any:
    try:
        await waiter
    except BaseException as error:
        if steps is not None:
            steps.append(f"{name} {type(error).__name__}")
        raise
    if steps is not None:
        steps.append(f"{name} ended")
    return waiter.result()


def test_a_task_continues_in_a_later_iteration() -> None:
    async def use(make: Callable[[], Any]) -> Any:
        waiter, steps = make(), list[str]()
        task = asyncio.ensure_future(awaited(waiter, steps, "task"))
        await asyncio.sleep(0)
        waiter.set_result((1, 2))
        steps.append("set")
        return [await task, steps, waiter.done(), waiter.cancelled(), waiter.cancel()]

    found = on_both(use)
    assert found[0] == found[1] == [(1, 2), ["set", "task ended"], True, False, False]


def test_one_that_has_ended_does_not_suspend() -> None:
    async def use(make: Callable[[], Any]) -> Any:
        waiter = make()
        waiter.set_result("done")
        return await awaited(waiter)

    assert on_both(use) == ["done", "done"]


def test_cancellation() -> None:
    async def use(make: Callable[[], Any]) -> Any:
        steps: list[str] = []
        waiters = [make() for _ in range(3)]
        tasks = [asyncio.ensure_future(awaited(each, steps, str(n))) for n, each in enumerate(waiters)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        waiters[1].cancel()
        waiters[2].set_result(2)
        tasks[2].cancel()  # too late for the waiter, not for the task
        found = await asyncio.gather(*tasks, return_exceptions=True)
        return [*map(type, found)], steps, [each.cancelled() for each in waiters], [each.done() for each in waiters]

    found = on_both(use)
    assert found[0] == found[1]
    assert found[1][2] == [True, True, False]


def test_another_loop_cannot_await_it() -> None:
    async def use(make: Callable[[], Any]) -> Any:
        waiter = make()
        with pytest.raises(RuntimeError, match="different loop"):
            await asyncio.to_thread(asyncio.run, awaited(waiter))
        return waiter.done()

    assert on_both(use) == [False, False]


def test_results_are_given_to_those_that_wait() -> None:
    assert compiled is not None
    results = compiled.BatchResults(["a", "b", "c"], ["0A", "0B", "0C"], WHOLE, SendResult)

    async def main() -> Any:
        waiters = [compiled.Waiter(asyncio.get_running_loop()) for _ in range(3)]
        tasks = [asyncio.ensure_future(awaited(each)) for each in waiters[:2]]
        await asyncio.sleep(0)
        tasks[1].cancel()
        results.give_to([*waiters])
        with pytest.raises(ValueError, match="waiter for each"):
            results.give_to(waiters[1:])
        found = await asyncio.gather(*tasks, return_exceptions=True)
        return [*found, await awaited(waiters[2])]

    first, cancelled, last = asyncio.run(main())
    assert first == SendResult(SendStatus.SEND_OK, "a", "0A", WHOLE.queue, 7)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert last == SendResult(SendStatus.SEND_OK, "c", "0C", WHOLE.queue, 9)


def test_others_continue_where_one_ends_the_program() -> None:
    assert compiled is not None
    loop, steps = asyncio.new_event_loop(), list[str]()
    waiters = [compiled.Waiter(loop) for _ in range(3)]

    async def ends() -> None:
        await waiters[1]
        raise SystemExit(3)

    tasks = [
        loop.create_task(each) for each in (awaited(waiters[0], steps, "0"), ends(), awaited(waiters[2], steps, "2"))
    ]
    loop.call_soon(loop.stop)
    loop.run_forever()
    compiled.BatchResults(["a", "b", "c"], ["0A", "0B", "0C"], WHOLE, SendResult).give_to(waiters)
    with pytest.raises(SystemExit):
        loop.run_forever()
    assert steps == ["0 ended"]
    loop.run_until_complete(tasks[2])
    assert steps == ["0 ended", "2 ended"]
    assert isinstance(tasks[1].exception(), SystemExit)
    loop.close()


def test_what_is_wrong_is_refused() -> None:
    assert compiled is not None

    async def main() -> None:
        waiter = compiled.Waiter(asyncio.get_running_loop())
        with pytest.raises(ValueError, match="has not ended"):
            waiter.result()
        tasks = [asyncio.ensure_future(awaited(waiter)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="awaited twice"):
            await tasks[1]
        waiter.set_result(1)
        with pytest.raises(ValueError, match="has ended"):
            waiter.set_result(2)
        assert await tasks[0] == 1
        with pytest.raises(IndexError):
            compiled.BatchResults(["a"], ["0A"], WHOLE, SendResult)[1]
        with pytest.raises(TypeError):
            compiled.wake_waiters([asyncio.get_running_loop().create_future()])

    asyncio.run(main())
