"""The deadline of a shutdown, and shields that end with it."""

from __future__ import annotations

import asyncio
import math
from contextvars import Context

import anyio

from kmr.service.deadline import Deadline, end_shields, shield


def test_it_begins_once() -> None:
    now, begun = 10.0, []
    deadline = Deadline(25.0, lambda: now)
    deadline.on_begin = lambda: begun.append(now)
    assert (deadline.left, deadline.drain_at) == (math.inf, math.inf)
    deadline.begin()
    now = 12.0
    deadline.begin()
    assert begun == [10.0]
    assert (deadline.drain_at, deadline.end_at, deadline.at) == (30.0, 33.75, 35.0)
    assert deadline.left == 23.0
    now = 50.0
    assert deadline.left == 0.0


async def test_a_shield_holds_until_a_timer_ends_it() -> None:
    ended = anyio.Event()

    async def wait() -> None:
        try:
            with shield():
                await anyio.sleep_forever()
        finally:
            ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
        try:
            with anyio.fail_after(60, shield=True):
                await anyio.wait_all_tasks_blocked()
                assert not ended.is_set()
                asyncio.get_running_loop().call_soon(end_shields, context=Context())
                await ended.wait()
        finally:
            end_shields()


async def test_the_end_of_shields_disturbs_nothing_that_is_not_cancelled() -> None:
    go_on = anyio.Event()

    async def wait() -> None:
        with shield():
            await go_on.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        end_shields()
        await anyio.wait_all_tasks_blocked()
        go_on.set()
