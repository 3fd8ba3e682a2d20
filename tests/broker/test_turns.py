import asyncio
import time

from kmr.broker.turns import SLICE_SECONDS, in_turns


async def test_other_tasks_run_between_two_slices() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def slow(number: int) -> int:
        time.sleep(SLICE_SECONDS)
        return -number

    task = asyncio.create_task(other())
    assert [slow(each) async for each in in_turns(range(5))] == [0, -1, -2, -3, -4]
    assert turns == 5
    task.cancel()
