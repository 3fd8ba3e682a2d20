"""When a waiting fetch is tried again; real partitions and buffers, attempts as the test says."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kmr.broker.apis.api import Reply
from kmr.broker.apis.records.long_poll import Lacking, LongPoll
from kmr.broker.buffer_pool import BufferPool
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.topics.topic import Partition

KIB = 1024


class Attempts:
    """A fetch whose attempts have these outcomes; it notes with which buffer each one was made."""

    def __init__(self, *outcomes: Reply | Lacking | Exception, wait: float = 600) -> None:
        self.buffers = BufferPool(8 * KIB)
        self.deadline = asyncio.get_running_loop().time() + wait
        self.out_of_time = False
        self.made: list[memoryview | None] = []
        self._outcomes = list(outcomes)

    def answer_now(self, buffer: memoryview | None = None) -> Reply | Lacking:
        self.made.append(buffer)
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def poll(attempts: Any, lacking: Lacking) -> LongPoll:
    return LongPoll(attempts, lacking)


@pytest.fixture
def partitions(tmp_path: Path) -> Iterator[list[Partition]]:
    logs = [PartitionLog.open(tmp_path / str(n), LogConfig(), clean=True) for n in range(2)]
    yield [Partition("t", index, log) for index, log in enumerate(logs)]
    for each in logs:
        each.close()


ANSWER = Reply(memoryview(b"answer"), lambda: None)


async def test_growth_of_several_partitions_in_one_turn_is_one_attempt(
    partitions: list[Partition],
) -> None:
    attempts = Attempts(ANSWER)
    waiting = poll(attempts, Lacking(partitions, 10))
    for each in partitions:
        each.advance(1, 5)
    assert attempts.made == []
    assert await waiting.reply is ANSWER
    assert attempts.made == [None]
    assert not any(each.watches for each in partitions)


async def test_a_poll_that_still_lacks_bytes_waits_on(partitions: list[Partition]) -> None:
    attempts = Attempts(Lacking(partitions, 3), ANSWER)
    waiting = poll(attempts, Lacking(partitions, 5))
    partitions[0].advance(1, 5)
    await asyncio.sleep(0)
    assert len(attempts.made) == 1
    assert not waiting.reply.done()
    partitions[1].advance(1, 3)
    assert await waiting.reply is ANSWER


async def test_it_is_tried_with_what_there_is_when_the_time_is_over(
    partitions: list[Partition],
) -> None:
    attempts = Attempts(ANSWER, wait=0.01)
    assert await poll(attempts, Lacking(partitions, 1)).reply is ANSWER
    assert attempts.out_of_time


async def test_it_is_tried_with_a_buffer_as_soon_as_there_is_memory(
    until: Callable[[Callable[[], bool]], Any],
) -> None:
    attempts = Attempts(ANSWER, wait=0.01)
    held = attempts.buffers.take_beyond_limit(8 * KIB)
    waiting = poll(attempts, Lacking(buffer_bytes=4 * KIB))
    await until(lambda: attempts.out_of_time)
    assert attempts.made == [], "the end of the time does not help without memory"
    attempts.buffers.put(held)
    assert await waiting.reply is ANSWER
    [buffer] = attempts.made
    assert buffer is not None
    assert len(buffer) == 4 * KIB


@pytest.mark.parametrize("has_memory", [False, True])
async def test_a_cancelled_poll_leaves_the_memory_to_others(has_memory: bool) -> None:
    attempts = Attempts()
    held = attempts.buffers.take_beyond_limit(8 * KIB)
    waiting = poll(attempts, Lacking(buffer_bytes=4 * KIB))
    if has_memory:
        attempts.buffers.put(held)
    waiting.reply.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert attempts.buffers.used == (0 if has_memory else 8 * KIB)
    assert attempts.made == []


async def test_a_cancelled_poll_watches_no_more(partitions: list[Partition]) -> None:
    attempts = Attempts()
    waiting = poll(attempts, Lacking(partitions, 1))
    partitions[0].advance(1, 1)
    waiting.reply.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert attempts.made == []
    assert not any(each.watches for each in partitions)


async def test_a_failed_attempt_is_the_responses_failure(partitions: list[Partition]) -> None:
    waiting = poll(Attempts(ZeroDivisionError("a bug")), Lacking(partitions, 1))
    partitions[0].close()
    with pytest.raises(ZeroDivisionError, match="a bug"):
        await waiting.reply
