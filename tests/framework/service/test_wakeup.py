"""`Wakeup` wakes the tasks that wait, once for each change."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from kmr.service.wakeup import Wakeup


async def test_all_tasks_that_wait_go_on_at_a_change_and_wait_for_the_next_one() -> None:
    changes, woken = Wakeup(), [0, 0]
    changes.notify()  # before the tasks wait: it wakes none

    async def count(task: int) -> None:
        while True:
            await changes.wait()
            woken[task] += 1

    async with anyio.create_task_group() as tasks:
        for task in range(2):
            tasks.start_soon(count, task)
        await anyio.wait_all_tasks_blocked()
        assert woken == [0, 0]
        for number in (1, 2):
            changes.notify()
            changes.notify()  # no task waits again yet
            await anyio.wait_all_tasks_blocked()
            assert woken == [number, number]
        tasks.cancel_scope.cancel()
