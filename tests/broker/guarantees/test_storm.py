"""A storm of requests of every API and version, with what earlier responses said, while honest clients work.

`KMR_STORM=100000 pytest tests/broker/guarantees/test_storm.py` sends so many. The seed of each round is its
parameter: a finding happens again.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import timedelta
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args
from uuid import UUID, uuid4

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial.errors import SerialError
from structlog.testing import capture_logs

from kmr.broker.apis.catalogue import SERVED
from kmr.broker.apis.records import produce
from kmr.broker.log.records import NewRecord, build_batch
from kmr.broker.protocol.messages import entity_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kmr.broker import Broker

    Start = Callable[..., Awaitable[Broker]]
    Connect = Callable[[Broker], Awaitable[Any]]

pytestmark = pytest.mark.loop_guard(milliseconds=100)
REQUESTS = int(os.environ.get("KMR_STORM", "600"))
PRODUCE, FETCH, OFFSET_COMMIT, SASL_HANDSHAKE = 0, 1, 8, 17
VERSIONS = [
    (each.key, version)
    for each in SERVED
    for version in range(each.min_version, each.max_version + 1)
    if each.key != PRODUCE or version >= produce.FIRST_SERVED_VERSION
]
TEXTS = [
    *(
        "t",
        "u",
        "g",
        "h",
        "x",
        "",
        "consumer",
        "range",
        "uniform",
        "retention.ms",
        "cleanup.policy",
    ),
    *(
        "compact",
        "1000",
        "0",
        "new",
        ".*",
        "(",
        "\x01" * 300,
        "\U0010ffff" * 300,
        "__consumer_offsets",
    ),
]
NUMBERS = [
    -(2**63),
    -(2**31),
    -(2**15),
    -2,
    -1,
    0,
    0,
    0,
    1,
    1,
    2,
    5,
    2**15 - 1,
    2**31 - 1,
    2**63 - 1,
]
WAITS = [timedelta(milliseconds=each) for each in (-1, 0, 1, 6_000, 10_000, 2**31 - 1)]
REMEMBERED = {
    *("member_id", "member_epoch", "generation_id", "generation_id_or_member_epoch"),
    *("producer_id", "producer_epoch", "topic_id", "session_id", "session_epoch", "offset"),
}


class Storm:
    """Makes requests; `memory` has values of fields in earlier responses."""

    def __init__(self, seed: int, *spared: object) -> None:
        """`spared`: what requests do not name, such as ids of honest clients' topics."""
        self.random = random.Random(seed)
        self.spared = spared
        self.memory: dict[str, list[Any]] = {}

    def request(self) -> Any:
        return self._entity(load_request_schema(*self.random.choice(VERSIONS)))

    def learn(self, message: Any) -> None:
        """Remember what a response said."""
        if isinstance(message, tuple):
            for each in message:
                self.learn(each)
        elif is_dataclass(message):
            for field in fields(message):
                value = getattr(message, field.name)
                if field.name in REMEMBERED and value not in (None, *self.spared):
                    self.memory.setdefault(field.name, []).append(value)
                    del self.memory[field.name][:-20]
                else:
                    self.learn(value)

    def damaged(self, frame: bytes) -> bytes:
        """Mostly the frame as it is; else with bytes that are changed, or cut."""
        if self.random.random() < 0.8:
            return frame
        data = bytearray(frame)
        for _ in range(self.random.randint(1, 3)):
            data[self.random.randrange(4, len(data))] = self.random.choice((0, 1, 127, 128, 255))
        return bytes(data)

    def _entity(self, entity_type: Any) -> Any:
        return entity_type(
            **{name: self._value(name, *rest) for name, *rest in _shape(entity_type)}
        )

    def _value(self, name: str, kind: str, entity: Any, many: bool, nullable: bool) -> Any:
        if nullable and self.random.random() < 0.2:
            return None
        if many:
            count = self.random.choice((0, 1, 1, 1, 2, 3))
            return tuple(self._one(name, kind, entity) for _ in range(count))
        return self._one(name, kind, entity)

    def _one(self, name: str, kind: str, entity: Any) -> Any:
        if entity is not None:
            return self._entity(entity)
        known = self.memory.get(name.replace("generation_id_or_member_epoch", "member_epoch"))
        if known and self.random.random() < 0.7:
            return self.random.choice(known)
        match kind:
            case "bool":
                return self.random.random() < 0.5
            case "bytes":
                return self.random.choice((b"", b"?", b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff"))
            case "records":
                return self._records()
            case "string":
                return self.random.choice(TEXTS)
            case "uuid":
                return self.random.choice((UUID(int=0), UUID(int=7), uuid4()))
            case "timedelta_i32" | "timedelta_i64":
                return self.random.choice(WAITS)
            case "float64":
                return self.random.choice((0.0, -1.0, float("nan"), float("inf")))
            case "error_code":
                return ErrorCode.none
            case _:
                bits = int(kind.removeprefix("u").removeprefix("int"))
                low, high = (
                    (0, 2**bits) if kind.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
                )
                return self.random.choice([each for each in NUMBERS if low <= each < high])

    def _records(self) -> bytes:
        choose = self.random.choice
        records = [
            NewRecord(choose((None, b"k")), choose((None, b"v" * 100)), (), choose((0, 1, 2**62)))
            for _ in range(choose((1, 2, 10)))
        ]
        batch = build_batch(
            records,
            codec=choose(("none", "gzip", "zstd", "lz4", "snappy")),
            producer_id=choose((-1, -1, *self.memory.get("producer_id", [5]))),
            producer_epoch=choose((-1, 0, 1)),
            base_sequence=choose((-1, 0, 1, 2**31 - 1)),
            transactional=choose((False, True)),
        )
        if self.random.random() < 0.3:
            batch[self.random.randrange(len(batch))] ^= 1 << self.random.randrange(8)
        return bytes(batch)


@cache
def _shape(entity_type: Any) -> list[tuple[str, str, Any, bool, bool]]:
    """Of each field: its name, Kafka's type, its entity, whether it is a list, whether it may be null."""
    shape = []
    for field in fields(entity_type):
        options = get_args(field.type)
        many = Ellipsis in options or any(Ellipsis in get_args(each) for each in options)
        kind = field.metadata.get("kafka_type", "")
        shape.append((field.name, kind, entity_in(field.type), many, NoneType in options))
    return shape


class Honest:
    """Produces to a topic of its own, and reads it back."""

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
        answer = await self.client.call(OFFSET_COMMIT, 8, group_id="honest", topics=topics)
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none


async def send(storm: Storm, client: Any) -> bool:
    """Send a request; return whether the connection can be used for the next one."""
    request = storm.request()
    try:
        sound: bytes = client.frame(request, 1)
    except (SerialError, ValueError, OverflowError):  # this version cannot say it
        return True
    frame = storm.damaged(sound)
    with suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError):
        await client.send_bytes(frame)
        async with asyncio.timeout(0.05):
            if frame != sound:
                await client.receive_frame()
            elif request.__api_key__ != PRODUCE or request.acks:
                with suppress(SerialError, KeyError):  # kio cannot read some of what it writes
                    storm.learn(await client.receive(request, 1))
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
            request_timeout=1,
            shutdown_timeout=0.1,
        )
        mine = await broker.topics.create("mine")
        for topic in ("t", "u"):
            await broker.topics.create(topic)
        honest, storm = Honest(await connect(broker)), Storm(seed, mine.topic_id)
        await honest.work()
        client, open_for_long = await connect(broker), list[Any]()
        for at in range(REQUESTS):
            if not await send(storm, client):
                open_for_long.append(client)
                if len(open_for_long) > 20:
                    await open_for_long.pop(0).close()
                client = await connect(broker)
            if at % 10 == 0:
                async with asyncio.timeout(10):
                    await honest.work()
        assert broker.health.live() == ""
        assert broker.health.supervisor.failures == []
    errors = [each for each in logs if each["log_level"] == "error"]
    assert errors == []
