"""The strategy that replays letters: its map names letters, the user's map gets records."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from kmr.dead_letters.replay import replay_of
from kmr.delivery.error_limit import ErrorLimit
from kmr.errors import StrategyError
from kmr.mapping.functions import apply, apply_async, map_batch, map_record
from kmr.mapping.stop import Stop
from kmr.sinks import DeadLetterWriter, KafkaWriter
from kmr.strategy import Strategy, TopicMap
from kmr.tagged_rows import branches
from kmr.testing import Journal, MemoryWriter
from kmr.values.json.json_format import Json

from .test_letters import FAILED, short_letters, written

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
    return batch.select(["topic", "partition", "offset", "kmr_offset"])


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


def test_a_letter_without_the_value_of_its_record_fails_again() -> None:
    letters = short_letters()
    replay = replay_of(Strategy(map=locate, reduce=[SINK]), everything(letters))
    mapped = apply(replay.map, letters, replay.map_spec)
    assert mapped.offsets.tolist() == [1], "of this one nothing is missing"
    assert [(f.offset, f.reason) for f in mapped.failures] == [
        (0, "the letter lacks the key of 2 bytes, value of 10 bytes, 1 headers of its record")
    ]


def test_letters_that_are_not_chosen_are_filtered() -> None:
    letters = letters_for(*(("t", 0, offset) for offset in range(5)))
    replay = replay_of(Strategy(map=locate, reduce=[SINK]), {0: np.array([1, 4])})
    assert apply(replay.map, letters, replay.map_spec).offsets.tolist() == [1, 4]
    nothing = replay_of(Strategy(map=locate, reduce=[SINK]), {})
    assert apply(nothing.map, letters, nothing.map_spec).table is None


def test_a_map_that_returns_no_rows_fails_its_letter_again() -> None:
    @map_record
    def wrong(record: Record) -> Any:
        return 1

    letters = letters_for(("t", 0, 1))
    replay = replay_of(Strategy(map=wrong, reduce=[SINK]), everything(letters))
    mapped = apply(replay.map, letters, replay.map_spec)
    assert [failure.reason.partition(";")[0] for failure in mapped.failures] == [
        "TypeError: the map returned int"
    ]


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
    mapped = replay.map(letters, None, resources="open")  # type: ignore[misc]  # there is a map
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


@map_record
def locate_other(record: Record) -> dict[str, Any] | None:
    return {"topic": "other", "partition": record.partition, "offset": record.offset}


@pytest.mark.parametrize("function", [locate, locate_later])
async def test_each_letter_goes_through_the_map_of_the_topic_of_its_record(function: Any) -> None:
    letters = letters_for(("t", 0, 5), ("u", 0, 3))
    by_topic = {"t": TopicMap(function), "u": TopicMap(locate_other)}
    replay = replay_of(Strategy(by_topic=by_topic, reduce=[SINK]), everything(letters))
    assert replay.map is not None
    if replay.map_spec.is_async:
        mapped = await apply_async(replay.map, letters, replay.map_spec)
    else:
        mapped = apply(replay.map, letters, replay.map_spec)
    assert rows_by_letter(mapped) == [(0, ("t", 0, 5)), (1, ("other", 0, 3))]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_replay_that_is_stopped_ends_before_its_next_call_and_names_the_rest(
    is_async: bool,
) -> None:
    stop, called = Stop(), []

    def call(record: Record) -> dict[str, Any]:
        called.append((record.topic, record.offset))
        if len(called) == 3:
            stop.expire()  # that is for maps whose records are in order
        if len(called) == 4:
            stop.request()
        return {"topic": record.topic, "offset": record.offset}

    @map_record
    def plain(record: Record) -> dict[str, Any]:
        return call(record)

    @map_record
    async def later(record: Record) -> dict[str, Any]:
        return call(record)

    letters = letters_for(("t", 0, 1), ("u", 0, 1), ("t", 0, 2), ("u", 0, 2), ("u", 0, 3))
    strategy = Strategy(map=later if is_async else plain, reduce=[SINK])
    replay = replay_of(strategy, everything(letters))
    assert replay.map is not None
    if is_async:
        mapped = await apply_async(replay.map, letters, replay.map_spec, stop)
    else:
        mapped = apply(replay.map, letters, replay.map_spec, stop)
    assert called == [("t", 1), ("t", 2), ("u", 1), ("u", 2)]
    assert (mapped.offsets.tolist(), mapped.rest) == ([0, 1, 2, 3], 4)


def test_a_stopped_replay_drops_rows_after_the_first_letter_that_is_left() -> None:
    stop = Stop()

    @map_record
    def first_part(record: Record) -> dict[str, Any]:
        if record.topic == "u":
            stop.request()
        return {"topic": record.topic, "offset": record.offset}

    letters = letters_for(("u", 0, 1), ("u", 0, 2), ("t", 0, 1), ("t", 0, 2))
    by_name = Strategy(map=first_part, reduce=[SINK])
    replay = replay_of(by_name, everything(letters))
    mapped = apply(replay.map, letters, replay.map_spec, stop)
    assert (mapped.offsets.tolist(), mapped.rest) == ([0], 1)


@pytest.mark.parametrize("function", [locate, locate_later])
async def test_a_rate_holds_for_letters(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(Stop, "sleep", lambda _, seconds: waited.append(seconds))

    async def sleep_async(_: Stop, seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(Stop, "sleep_async", sleep_async)
    letters = letters_for(*(("t", 0, offset) for offset in range(1, 11)))
    rate = 0.5 if function is locate else 0.25  # a limit is shared by all with its rate
    replay = replay_of(Strategy(map=function, reduce=[SINK]), everything(letters), rate)
    assert replay.map is not None
    for _ in range(2):
        if replay.map_spec.is_async:
            await apply_async(replay.map, letters, replay.map_spec)
        else:
            apply(replay.map, letters, replay.map_spec)
    assert waited[0] == 0
    assert waited[1] == pytest.approx(10 / rate, rel=0.02)


@map_record
def to_both(record: Record) -> list[tuple[dict[str, Any], str]]:
    return [({"offset": record.offset}, "a"), ({"twice": 2 * record.offset}, "b")]


def test_a_letter_of_a_branch_is_replayed_to_that_branch_alone() -> None:
    stages = ["reduce-1 b", "map", "reduce-1 a", "reduce-1 b", "reduce-1 gone"]
    letters = written(*(FAILED | {"offset": at, "stage": stage} for at, stage in enumerate(stages)))
    strategy = Strategy(map=to_both, reduce={"a": SINK, "b": deepcopy(SINK)})
    replay = replay_of(strategy, everything(letters))
    assert replay.map is not None
    mapped = apply(replay.map, letters, replay.map_spec)
    assert mapped.table is not None
    found = {
        name: sorted(int(mapped.offsets[place]) for place in places)
        for name, _, places in branches(mapped.table)
    }
    assert found == {"a": [1, 2], "b": [0, 1, 3]}
    assert mapped.places is not None
    assert mapped.places.column("offset").to_pylist() == mapped.offsets.tolist()
