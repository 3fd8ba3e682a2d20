"""DeadLetterWriter, and KafkaWriter as the error sink, against the broker of this process."""

from __future__ import annotations

import pickle
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kmr.delivery.failures import FAILED_SCHEMA
from kmr.errors import StrategyError
from kmr.sinks.kafka.letter_writer import DeadLetterWriter
from kmr.sinks.kafka.writer import KafkaWriter

from ...flushes import Flushed
from .topics import TOPIC, consumed, create, flushed, opened, rows_of

if TYPE_CHECKING:
    from kmr.broker import Broker


async def test_a_dead_letter_is_the_unchanged_record_with_the_reason(broker: Broker) -> None:
    await create(broker)
    failed = {
        "key": b"UA",
        "value": b"\xff not json",
        "topic": "flights",
        "partition": 3,
        "offset": 41,
        "timestamp": 1_700_000_000_123_000,
        "timestampType": 0,
        "headers": [{"key": "trace", "value": b"t"}, {"key": "trace", "value": None}],
        "reason": "ValueError: no json",
        "stage": "map",
        "attempt": 1,
    }
    bare = failed | {"key": None, "value": None, "headers": None, "offset": 42}
    table = pa.Table.from_pylist([failed, bare], schema=FAILED_SCHEMA)
    async with opened(broker, DeadLetterWriter(TOPIC)) as writer:
        writer.add(rows_of(table, first=41))
        await flushed(writer)
    first, second = await consumed(broker)
    assert (first.key, first.value) == (b"UA", b"\xff not json")
    assert first.headers == (
        ("trace", b"t"),
        ("trace", None),
        ("kmr.topic", b"flights"),
        ("kmr.partition", b"3"),
        ("kmr.offset", b"41"),
        ("kmr.timestamp", b"1700000000123"),
        ("kmr.group", b"g"),
        ("kmr.stage", b"map"),
        ("kmr.reason", b"ValueError: no json"),
        ("kmr.attempt", b"1"),
    )
    assert (second.key, second.value) == (None, None)
    assert dict(second.headers)["kmr.offset"] == b"42"


@pytest.mark.parametrize("kind", [KafkaWriter, DeadLetterWriter])
@pytest.mark.parametrize("compression", [None, "gzip"])
async def test_a_failed_record_that_is_too_large_for_the_topic_is_written_without_its_contents(
    broker: Broker, kind: type[KafkaWriter], compression: Any
) -> None:
    await create(broker, max_message_bytes="4000")
    large = random.Random(1).randbytes(5_000)
    failed = {
        "topic": "flights",
        "partition": 3,
        "timestamp": 2**60,
        "reason": "ValueError: no json",
        "stage": "map",
        "attempt": 1,
    }
    records = [
        {"offset": 41, "value": b"a"},
        {"offset": 42, "key": b"UA", "value": large, "headers": [{"key": "h", "value": large}]},
        {"offset": 43, "value": b"b"},
        {"offset": 44, "value": b"c", "reason": "x" * 50_000, "traceback": "y" * 2_000},
    ]
    table = pa.Table.from_pylist([failed | each for each in records], schema=FAILED_SCHEMA)
    writer = kind(TOPIC, compression=compression)
    async with opened(broker, writer, "reduce-err") as writer:
        writer.add(rows_of(table, first=41))
        assert await flushed(writer) == Flushed()
    letters = {
        number: letter
        for letter in await consumed(broker)
        for number in range(41, 45)
        if dict(letter.headers).get("kmr.offset") == b"%d" % number
        or b'"offset":%d,' % number in (letter.value or b"")
    }
    assert sorted(letters) == [41, 42, 43, 44]
    lost = b"key of 2 bytes, value of 5,000 bytes, 1 headers"
    if kind is DeadLetterWriter:
        assert letters[41].value == b"a"
        assert letters[42].value is None
        assert dict(letters[42].headers)["kmr.not-stored"] == lost
    else:
        assert lost in (letters[42].value or b"")


def test_a_dead_letter_cannot_have_another_value() -> None:
    with pytest.raises(StrategyError, match="value is that of the failed record"):
        DeadLetterWriter(TOPIC, value="v")  # type: ignore[call-arg]


def test_a_writer_of_dead_letters_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(DeadLetterWriter(TOPIC))).max_age == 1.0
