"""The strategy that replays letters: its map names letters, the user's map gets records."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from kmr.dead_letters.replay import replay_of
from kmr.errors import StrategyError
from kmr.mapping.functions import apply, apply_async, map_batch, map_record
from kmr.sinks import DeadLetterWriter, KafkaWriter
from kmr.strategy import ErrorLimit, Strategy
from kmr.testing import Journal, MemoryWriter
from kmr.values.json import Json

from .test_letters import FAILED, written

if TYPE_CHECKING:
    import pyarrow as pa

    from kmr.record import Record


class Order(msgspec.Struct):
    number: int


SINK = MemoryWriter(Journal())


@map_record
def locate(record: Record) -> dict[str, Any] | None:
    if record.offset == 13:
        raise ValueError("unlucky")
    if record.offset == 14:
        return None
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}


@map_record
async def locate_later(record: Record) -> dict[str, Any] | None:
    return locate(record)


@map_batch
def locate_all(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(["topic", "partition", "offset"])


def letters_for(*places: tuple[str, int, int]) -> pa.RecordBatch:
    return written(
        *(FAILED | dict(zip(("topic", "partition", "offset"), p, strict=True)) for p in places)
    )


def everything(letters: pa.RecordBatch) -> dict[int, Any]:
    return {0: np.arange(len(letters))}


def rows_by_letter(mapped: Any) -> list[tuple[int, tuple[Any, ...]]]:
    rows = [tuple(row.values()) for row in mapped.table.to_pylist()]
    return list(zip(mapped.offsets.tolist(), rows, strict=True))


@pytest.mark.parametrize("function", [locate, locate_all])
def test_rows_are_of_the_records_and_belong_to_the_letters(function: Any) -> None:
    places = [("u", 0, 5), ("t", 1, 9), ("u", 0, 3), ("t", 1, 9), ("t", 0, 5)]
    letters = letters_for(*places)
    replay = replay_of(Strategy(map=function, reduce=[SINK]), everything(letters))
    assert replay.map is not None
    mapped = apply(replay.map, letters, replay.map_spec)
    assert rows_by_letter(mapped) == list(enumerate(places))


async def test_records_that_fail_or_are_filtered_do_so_as_letters() -> None:
    letters = letters_for(("t", 0, 12), ("t", 0, 14), ("t", 0, 13), ("t", 0, 11))
    for function in (locate, locate_later):
        replay = replay_of(Strategy(map=function, reduce=[SINK]), everything(letters))
        assert replay.map is not None
        if replay.map_spec.is_async:
            mapped = await apply_async(replay.map, letters, replay.map_spec)
        else:
            mapped = apply(replay.map, letters, replay.map_spec)
        assert mapped.offsets.tolist() == [0, 3]
        assert [(f.offset, f.reason) for f in mapped.failures] == [(2, "ValueError: unlucky")]


def test_letters_that_are_not_chosen_are_filtered() -> None:
    letters = letters_for(*(("t", 0, offset) for offset in range(5)))
    replay = replay_of(Strategy(map=locate, reduce=[SINK]), {0: np.array([1, 4])})
    assert apply(replay.map, letters, replay.map_spec).offsets.tolist() == [1, 4]
    nothing = replay_of(Strategy(map=locate, reduce=[SINK]), {})
    assert apply(nothing.map, letters, nothing.map_spec).table is None


def test_a_map_that_returns_no_rows_ends_the_replay_instead_of_becoming_a_letter() -> None:
    @map_record
    def wrong(record: Record) -> Any:
        return 1

    letters = letters_for(("t", 0, 1))
    replay = replay_of(Strategy(map=wrong, reduce=[SINK]), everything(letters))
    with pytest.raises(StrategyError, match="return"):
        apply(replay.map, letters, replay.map_spec)


def test_only_the_error_sink_of_a_replay_may_write_to_the_topic_of_letters() -> None:
    servers = "127.0.0.1:9092"
    safe = Strategy(map=locate, reduce=[SINK], reduce_err=DeadLetterWriter("dead"))
    replay_of(safe, {}).refuse_loop(["dead"], servers)
    loop = Strategy(map=locate, reduce=[KafkaWriter("dead", bootstrap_servers=servers)])
    with pytest.raises(StrategyError, match="writes to topic dead"):
        replay_of(loop, {}).refuse_loop(["dead"], servers)


def test_a_replay_gives_the_map_its_resources() -> None:
    @map_record
    def annotated(record: Record, resources: str) -> dict[str, Any]:
        return {"pool": resources}

    letters = letters_for(("t", 0, 7))
    strategy = Strategy(annotated, [SINK], resources=lambda: nullcontext("open"))
    replay = replay_of(strategy, everything(letters))
    assert replay.resources is strategy.resources
    mapped = replay.map(letters, resources="open")  # type: ignore[misc]  # there is a map
    assert rows_by_letter(mapped) == [(0, ("open",))]


def test_everything_but_map_and_formats_is_that_of_the_strategy() -> None:
    strategy = Strategy(
        value=Json(Order),
        reduce=[SINK],
        reduce_err=DeadLetterWriter("dead"),
        err_limit=ErrorLimit(3),
        delivery="at-most-once",
    )
    replay = replay_of(strategy, {})
    for name in {each.name for each in fields(Strategy)} - {"map", "map_spec", "value", "key"}:
        assert getattr(replay, name) == getattr(strategy, name)


def test_values_with_a_format_are_decoded_as_in_the_strategy() -> None:
    strategy = Strategy(value=Json(Order), reduce=[SINK])
    letters = written(FAILED | {"value": b'{"number": 1}'}, FAILED | {"value": b"{}", "offset": 42})
    replay = replay_of(strategy, everything(letters))
    assert replay.map is not None
    mapped = apply(replay.map, letters, replay.map_spec)
    assert rows_by_letter(mapped) == [(0, (1,))]
    assert [failure.offset for failure in mapped.failures] == [1]
