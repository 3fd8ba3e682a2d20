"""Lanes that share a turn: who waits for whom, and who writes for all; time is virtual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from kmr.reducers.buffer import Buffer
from kmr.reducers.joined_turn import JoinedTurn
from kmr.reducers.reducer import Retry
from kmr.testing import Journal, MemoryWriter, VirtualTimeLoop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


def buffers(count: int) -> list[Buffer]:
    return [Buffer(MemoryWriter(Journal())) for _ in range(count)]


async def test_a_lane_that_is_late_has_no_part_in_the_turn(clock: VirtualClock) -> None:
    first, second, late = buffers(3)
    turn = JoinedTurn([first, second, late])
    came: list[bool] = []

    async def gather(buffer: Buffer) -> None:
        came.append(await turn.gather(buffer))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gather, first)
        tasks.start_soon(gather, second)
        await clock.advance(0.9)
        assert came == []
        await clock.advance(0.2)
        assert came == [True, True]
        await gather(late)
    assert came == [True, True, False]


async def test_a_lane_that_comes_while_the_others_are_written_waits_for_the_end(
    clock: VirtualClock,
) -> None:
    """Its own write may take the token that they share: before theirs, that would drop theirs."""
    early, late = buffers(2)
    turn, end, done = JoinedTurn([early, late]), anyio.Event(), list[str]()

    async def write(items: Sequence[str]) -> Sequence[str]:
        await end.wait()
        done.append("together")
        return items

    async def come_late() -> None:
        assert await turn.write("late", write) is None
        done.append("alone")

    async with anyio.create_task_group() as tasks:
        for buffer in (early, late):
            tasks.start_soon(turn.gather, buffer)
        await clock.settle()
        tasks.start_soon(turn.write, "early", write)
        await clock.advance(1.1)
        tasks.start_soon(come_late)
        await clock.settle()
        assert done == []
        end.set()
    assert done == ["together", "alone"]


async def test_the_first_lane_writes_for_all_and_one_that_comes_later_writes_alone(
    clock: VirtualClock,
) -> None:
    members = buffers(3)
    turn = JoinedTurn(members)
    written: list[Sequence[str]] = []

    async def write(items: Sequence[str]) -> Sequence[str]:
        written.append(items)
        return [item.upper() for item in items]

    results: dict[str, str | None] = {}

    async def lane(item: str, buffer: Buffer) -> None:
        await turn.gather(buffer)
        if item != "c":
            results[item] = await turn.write(item, write)

    async with anyio.create_task_group() as tasks:
        for item, buffer in zip("abc", members, strict=True):
            tasks.start_soon(lane, item, buffer)
        await clock.settle()
        assert written == []
        turn.leave(members[2])
    assert results == {"a": "A", "b": "B"}
    assert await turn.write("c", write) is None
    assert written == [["a", "b"]]


async def test_the_others_try_again_when_the_lane_that_writes_is_stopped(
    clock: VirtualClock,
) -> None:
    members = buffers(2)
    turn = JoinedTurn(members)
    failed: list[str] = []

    async def write(_: Sequence[str]) -> Sequence[str]:
        await anyio.sleep_forever()
        raise AssertionError

    async def lane(item: str, buffer: Buffer, scope: anyio.CancelScope) -> None:
        with scope:
            await turn.gather(buffer)
            try:
                await turn.write(item, write)
            except Retry as retry:
                failed.append(retry.reason)

    scopes = [anyio.CancelScope(), anyio.CancelScope()]
    async with anyio.create_task_group() as tasks:
        for item, buffer, scope in zip("ab", members, scopes, strict=True):
            tasks.start_soon(lane, item, buffer, scope)
        await clock.settle()
        scopes[0].cancel()
    assert failed == ["the lane that writes for others was stopped"]


async def test_lanes_that_miss_a_turn_have_the_next_one_together(clock: VirtualClock) -> None:
    first, *late = buffers(4)
    turn = JoinedTurn([first, *late])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(turn.gather, first)
        await clock.advance(1.1)
        came = [await turn.gather(buffer) for buffer in late]
        assert came == [False] * 3
        following = turn.follow(late[0])
        assert turn.follow(late[1]) is following is not turn
        await clock.advance(0.1)
        assert turn.follow(late[2]) is not following, "it comes too late for that, too"
