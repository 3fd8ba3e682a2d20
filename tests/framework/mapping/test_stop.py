"""A map that is stopped has mapped the records before, and says where the others begin."""

from __future__ import annotations

import gc
import sys
import weakref
from dataclasses import replace
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from kmr import Json
from kmr.mapping.functions import apply, apply_async, map_record, spec_of
from kmr.mapping.inputs import PART, Inputs
from kmr.mapping.stop import Stop
from kmr.testing import batch_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from kmr.record import Record

RECORDS = batch_of("t", 0, 10, [b"a", b"b", b"c"]).records


@pytest.mark.parametrize(
    ("during", "mapped_offsets", "rest"),
    [(10, [10], 11), (11, [10, 11], 12), (12, [10, 11, 12], None)],
)
async def test_the_call_under_way_is_the_last_one(
    during: int, mapped_offsets: list[int], rest: int | None
) -> None:
    def row(record: Record) -> dict[str, Any]:
        if record.offset == during:
            stop.request()
        return {"o": record.offset}

    @map_record
    def plain(record: Record) -> dict[str, Any]:
        return row(record)

    @map_record
    async def coroutine(record: Record) -> dict[str, Any]:
        return row(record)

    stop = Stop()
    mapped = apply(plain, RECORDS, stop=stop)
    assert (mapped.offsets.tolist(), mapped.rest) == (mapped_offsets, rest)
    stop = Stop()
    mapped = await apply_async(coroutine, RECORDS, stop=stop)
    assert (mapped.offsets.tolist(), mapped.rest) == (mapped_offsets, rest)


@pytest.mark.parametrize(
    "during", [1, PART - 2, PART - 1, PART, PART + 900, 2 * PART, 3 * PART - 2]
)
def test_a_map_of_many_records_has_the_rows_and_failures_before_the_stop_alone(during: int) -> None:
    class Number(msgspec.Struct):
        n: int

    def row(value: Number) -> dict[str, Any]:
        if value.n == during:
            stop.expire()
        if value.n % 5 == 0:
            raise ValueError(value.n)
        return {"n": value.n}

    values = [b'{"n":%d}' % n if n % 17 else b"no JSON" for n in range(3 * PART)]
    during += during % 17 == 0
    stop = Stop()
    spec = replace(spec_of(row), inputs=Inputs(Json(Number), parameters="value"))
    mapped = apply(row, batch_of("t", 0, 0, values).records, spec, stop)
    begun = range(during + 1)
    assert mapped.rest == during + 1
    rows = [n for n in begun if n % 17 and n % 5]
    assert mapped.offsets.tolist() == rows
    assert mapped.table is not None
    assert mapped.table["n"].to_pylist() == rows
    assert [each.offset for each in mapped.failures] == [
        n for n in begun if not n % 17 or not n % 5
    ]


def test_a_map_of_many_records_frees_those_that_are_mapped() -> None:
    objects: list[weakref.ref[Any]] = []
    alive: list[int] = []

    class Number(msgspec.Struct, weakref=True):
        n: int

    def row(value: Number) -> Number:
        objects.append(weakref.ref(value))
        alive.append(sum(each() is not None for each in objects[: value.n // 1_000 * 1_000]))
        return value

    values = [b'{"n":%d}' % n for n in range(3 * PART)]
    spec = replace(spec_of(row), inputs=Inputs(Json(Number), parameters="value"), row_class=Number)
    mapped = apply(row, batch_of("t", 0, 0, values).records, spec)
    assert len(mapped.offsets) == 3 * PART
    assert max(alive) < 2 * PART


@pytest.mark.parametrize("end", [Stop.expire, Stop.request])
def test_a_stop_at_any_line_of_the_map_divides_its_records(
    end: Callable[[Stop], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmr.mapping.inputs.PART", 2)
    records = batch_of("t", 0, 0, [b"x"] * 5).records

    def row(record: Record) -> dict[str, Any]:
        return {"o": record.offset}

    def stopped_at(line: int) -> bool:
        """Stop the map before its so-manieth line; return whether it has so many."""
        stop, lines = Stop(), count()

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if frame.f_code.co_name != "apply":
                return None
            if event == "line" and next(lines) == line:
                end(stop)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            mapped = apply(row, records, stop=stop)
        finally:
            sys.settrace(before)
        assert mapped.offsets.tolist() == list(range(5 if mapped.rest is None else mapped.rest))
        return next(lines) > line

    assert sum(takewhile(bool, map(stopped_at, count()))) > 20


def test_a_map_that_was_stopped_before_its_first_record_maps_none() -> None:
    @map_record
    def refused(record: Record) -> None:
        raise AssertionError("it must not begin")

    stop = Stop()
    stop.request()
    mapped = apply(refused, RECORDS, stop=stop)
    assert (mapped.table, mapped.failures, mapped.rest) == (None, (), 10)


class Number(msgspec.Struct, weakref=True):
    n: int


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_map_that_has_ended_keeps_none_of_its_values(is_async: bool) -> None:
    seen: list[weakref.ref[Number]] = []

    def row(value: Number) -> dict[str, int]:
        seen.append(weakref.ref(value))
        return {"n": value.n}

    async def awaited(value: Number) -> dict[str, int]:
        return row(value)

    function: Any = awaited if is_async else row
    spec = replace(spec_of(function), inputs=Inputs(Json(Number), parameters="value"))
    records = batch_of("t", 0, 0, [b'{"n":1}', b'{"n":2}']).records
    stop = Stop()
    gc.disable()
    try:
        if is_async:
            await apply_async(function, records, spec, stop, decode_in_thread=False)
        else:
            apply(function, records, spec, stop)
        assert [each() for each in seen] == [None, None]
    finally:
        gc.enable()
