"""Applying map functions: rows, filtered and failed records, per record and per batch."""

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.errors import StrategyError
from kmr.mapping.functions import apply, apply_async, map_batch, map_record, spec_of
from kmr.record import SCHEMA, Record
from kmr.testing import batch_of

VALUES = [b"1", b"2", b"x", b"4"]


@map_record
def number(record: Record) -> dict[str, Any] | None:
    assert record.value is not None
    value = int(record.value)
    return {"offset": record.offset, "value": value} if value != 2 else None


def records(values: list[bytes | None] | list[bytes], first: int = 10) -> pa.RecordBatch:
    return batch_of("t", 0, first, values).records


def test_a_per_record_map_gives_rows_filters_and_fails_by_record() -> None:
    mapped = apply(number, records(VALUES))
    assert mapped.table is not None
    assert mapped.table.to_pydict() == {"offset": [10, 13], "value": [1, 4]}
    assert mapped.offsets.tolist() == [10, 13]
    [failure] = mapped.failures
    assert failure.offset == 12
    assert "ValueError" in failure.reason


def test_a_marked_function_stays_the_function_that_it_was() -> None:
    assert number(Record("t", 0, 3, None, b"7", 0, 0)) == {"offset": 3, "value": 7}
    assert pickle.loads(pickle.dumps(number)) is number


def test_one_record_can_become_many_rows_by_a_list_or_a_generator() -> None:
    @map_record
    def listed(record: Record) -> list[dict[str, int]]:
        return [{"n": n} for n in range(record.offset - 10)]

    @map_record
    def generated(record: Record) -> Iterator[dict[str, int]]:
        yield from ({"n": n} for n in range(record.offset - 10))

    for function in (listed, generated):
        mapped = apply(function, records([b""] * 4))
        assert mapped.table is not None
        assert mapped.table.to_pydict() == {"n": [0, 0, 1, 0, 1, 2]}
        assert mapped.offsets.tolist() == [11, 12, 12, 13, 13, 13]


def test_a_generator_that_raises_halfway_fails_its_whole_record() -> None:
    @map_record
    def halfway(record: Record) -> Iterator[dict[str, int]]:
        yield {"n": record.offset}
        if record.offset == 11:
            raise RuntimeError("broken")

    mapped = apply(halfway, records([b""] * 3))
    assert mapped.offsets.tolist() == [10, 12]
    assert [f.offset for f in mapped.failures] == [11]


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_a_batch_map_that_raises_is_bisected_so_that_only_poison_fails(poison: list[bool]) -> None:
    @map_batch
    def strict(batch: pa.RecordBatch) -> pa.RecordBatch:
        if pc.any(pc.equal(batch.column("value"), pa.scalar(b"poison"))).as_py():
            raise ValueError("poison inside")
        return batch

    mapped = apply(strict, records([b"poison" if bad else b"good" for bad in poison]))
    assert mapped.offsets.tolist() == [10 + at for at, bad in enumerate(poison) if not bad]
    assert [f.offset for f in mapped.failures] == [10 + at for at, bad in enumerate(poison) if bad]


def test_a_batch_without_records_calls_nothing() -> None:
    @map_record
    def never(record: Record) -> dict[str, int]:
        raise AssertionError("called")

    assert apply(never, pa.RecordBatch.from_pylist([], schema=SCHEMA)).table is None


async def test_async_maps_give_what_plain_ones_give() -> None:
    @map_record
    async def by_record(record: Record) -> dict[str, Any] | None:
        return number(record)

    @map_batch
    async def by_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
        if pc.any(pc.equal(batch.column("value"), pa.scalar(b"x"))).as_py():
            raise ValueError("x")
        return batch

    plain, mapped = apply(number, records(VALUES)), await apply_async(by_record, records(VALUES))
    assert mapped.table is not None
    assert plain.table is not None
    assert mapped.table.equals(plain.table)
    assert [each[:4] for each in mapped.failures] == [each[:4] for each in plain.failures]
    mapped = await apply_async(by_batch, records(VALUES))
    assert mapped.offsets.tolist() == [10, 11, 13]


def test_a_plain_function_is_called_with_each_record_and_no_other_object_is() -> None:
    def plain(record: Record) -> None:
        return None

    spec = spec_of(plain)
    assert (spec.per, spec.is_async, spec.calls) == ("record", False, None)
    for other in (3, Record):
        with pytest.raises(StrategyError, match="is not a function"):
            spec_of(other)
