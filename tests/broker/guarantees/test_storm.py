"""A storm of requests that repeat what earlier responses said, such as members' ids, beside an honest client.

`KMR_STORM=100000 pytest tests/broker/guarantees/test_storm.py` sends so many.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode
from kio.serial.errors import SerialError
from structlog.testing import capture_logs

from kmr.broker.log.records import NewRecord, build_batch
from tests.broker.fuzzing import Fuzzer
from tests.broker.raw_client import request_type

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from dataclasses import Field

    from kmr.broker import Broker

    Start = Callable[..., Awaitable[Broker]]
    Connect = Callable[[Broker], Awaitable[Any]]

pytestmark = pytest.mark.loop_guard(milliseconds=50)
REQUESTS = int(os.environ.get("KMR_STORM", "600"))
PRODUCE, OFFSET_COMMIT = 0, 8
REMEMBERED = {
    *("member_id", "member_epoch", "generation_id", "producer_id", "producer_epoch"),
    *("topic_id", "session_id", "session_epoch", "offset"),
}


class Remembering(Fuzzer):
    """Makes requests with values of the same fields in earlier responses, mostly."""

    def __init__(self, seed: int, *spared: object) -> None:
        """`spared`: values that requests do not have, such as ids of an honest client's topics."""
        super().__init__(seed)
        self._spared = spared
        self._memory: dict[str, list[Any]] = {}

    def message(self) -> Any:
        return self._entity(request_type(*self.random.choice(self._versions)))

    def damaged(self, frame: bytes) -> bytes:
        return self._damaged(frame) if self.random.random() < 0.2 else frame

    def learn(self, message: Any) -> None:
        """Remember what a response said."""
        if isinstance(message, tuple):
            for each in message:
                self.learn(each)
        elif is_dataclass(message):
            for field in fields(message):
                value = getattr(message, field.name)
                if field.name not in REMEMBERED:
                    self.learn(value)
                elif value not in (None, *self._spared):
                    known = self._memory.setdefault(field.name, [])
                    known.append(value)
                    del known[:-20]

    def _field(self, field: Field[Any]) -> Any:
        name = field.name.replace("generation_id_or_member_epoch", "member_epoch")
        known = self._memory.get(name)
        if known and self.random.random() < 0.7:
            return self.random.choice(known)
        return super()._field(field)


class Honest:
    """Produces to a topic of its own, and commits how far."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.produced = 0

    async def work(self) -> None:
        batch = bytes(build_batch([NewRecord(None, b"%d" % self.produced)]))
        data = [{"name": "mine", "partition_data": [{"index": 0, "records": batch}]}]
        answer = await self.client.call(PRODUCE, 9, acks=-1, topic_data=data)
        (result,) = answer.responses[0].partition_responses
        assert (result.error_code, result.base_offset) == (ErrorCode.none, self.produced)
        self.produced += 1
        offset = {"partition_index": 0, "committed_offset": self.produced}
        topics = [{"name": "mine", "partitions": [offset]}]
        answer = await self.client.call(OFFSET_COMMIT, 8, group_id="mine", topics=topics)
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none


async def send(fuzzer: Remembering, client: Any) -> bool:
    """Send a request; return whether the connection can be used for the next one."""
    request = fuzzer.message()
    try:
        sound: bytes = client.frame(request, 1)
    except (SerialError, ValueError, OverflowError):  # this version cannot say it
        return True
    frame = fuzzer.damaged(sound)
    with suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
        await client.send_bytes(frame)
        async with asyncio.timeout(0.05):
            if frame != sound:
                await client.receive_frame()
            elif request.__api_key__ != PRODUCE or request.acks:
                with suppress(SerialError, KeyError):  # kio cannot read some of what it writes
                    fuzzer.learn(await client.receive(request, 1))
            return frame == sound
    return False


@pytest.mark.parametrize("seed", range(2))
async def test_no_request_ends_the_broker_or_keeps_an_honest_client(
    start: Start, connect: Connect, seed: int
) -> None:
    with capture_logs() as logs:
        broker = await start(
            fsync="os",
            max_partitions=50,
            group_min_session_timeout=0.1,
            group_max_session_timeout=10,
            group_memory_bytes=1_000_000,
            transaction_memory_bytes=1_000_000,
            shutdown_timeout=0.1,
        )
        mine = await broker.topics.create("mine")
        await broker.topics.create("plain")
        honest, fuzzer = Honest(await connect(broker)), Remembering(seed, mine.topic_id)
        await honest.work()
        client, waiting = await connect(broker), list[Any]()
        for at in range(REQUESTS):
            if not await send(fuzzer, client):
                waiting.append(client)
                if len(waiting) > 20:
                    await waiting.pop(0).close()
                client = await connect(broker)
            if at % 10 == 0:
                async with asyncio.timeout(60):
                    await honest.work()
        assert broker.health.live() == ""
        assert broker.health.warnings() == ""
    assert [each for each in logs if each["log_level"] == "error"] == []
