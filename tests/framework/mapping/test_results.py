"""The results of map functions as columns: types, schemas, offsets, and results that are refused."""

import pyarrow as pa
import pytest

from kmr.errors import StrategyError
from kmr.mapping.functions import apply, map_batch, map_record
from kmr.record import Record
from kmr.testing import batch_of

VALUES = [b"1", b"2", b"x", b"4"]


def records(values: list[bytes | None] | list[bytes], first: int = 10) -> pa.RecordBatch:
    return batch_of("t", 0, first, values).records


def test_a_key_that_only_later_rows_have_becomes_a_column_with_nulls() -> None:
    @map_record
    def widening(record: Record) -> dict[str, int]:
        return {"a": 1} if record.offset == 10 else {"a": 2, "b": 3}

    mapped = apply(widening, records([b"", b""]))
    assert mapped.table is not None
    assert mapped.table.to_pydict() == {"a": [1, 2], "b": [None, 3]}


def test_a_value_of_another_type_than_its_column_fails_only_its_record() -> None:
    @map_record
    def mixed(record: Record) -> dict[str, object]:
        return {"a": "text" if record.offset == 12 else record.offset}

    mapped = apply(mixed, records([b""] * 4))
    assert mapped.offsets.tolist() == [10, 11, 13]
    assert [(f.offset, "column a" in f.reason) for f in mapped.failures] == [(12, True)]


def test_a_schema_fixes_the_types_whatever_the_batch_holds() -> None:
    schema = pa.schema({"a": pa.int16(), "b": pa.string()})  # type: ignore[arg-type]  # the stubs are narrower

    @map_record(schema=schema)
    def typed(record: Record) -> dict[str, object]:
        return {"a": 70_000 if record.offset == 11 else 7}

    mapped = apply(typed, records([b""] * 3))
    assert mapped.table is not None
    assert mapped.table.schema == schema
    assert [f.offset for f in mapped.failures] == [11]


@pytest.mark.parametrize("wrong", [7, "text", [1], b"x"])
def test_a_result_that_can_be_no_row_is_a_mistake_of_the_strategy(wrong: object) -> None:
    @map_record
    def bad(record: Record) -> object:
        return wrong

    with pytest.raises(StrategyError, match=r"bad returned \w+ for offset 10"):
        apply(bad, records([b""]))


def test_a_batch_map_may_name_the_input_row_of_each_output_row() -> None:
    @map_batch
    def kept(batch: pa.RecordBatch) -> tuple[pa.Table, list[int]]:
        return pa.table({"v": ["b", "b again", "d"]}), [1, 1, 3]

    assert apply(kept, records(VALUES)).offsets.tolist() == [11, 11, 13]


def test_rows_of_a_batch_map_are_put_in_the_order_of_their_offsets() -> None:
    @map_batch
    def reversing(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.take(pa.array([3, 1, 0, 2]))

    mapped = apply(reversing, records(VALUES))
    assert mapped.table is not None
    assert mapped.table.column("value").to_pylist() == VALUES


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (pa.table({"v": [1]}), "without `offset`"),
        (pa.table({"offset": ["1"]}), "changed the `offset` column"),
        (pa.table({"offset": [99]}), "offsets 99 to 99, but its batch holds 10 to 13"),
        ((pa.table({"v": [1, 2]}), [0]), "2 rows and 1 `keep`"),
        ("text", "returned str"),
    ],
)
def test_a_batch_map_whose_rows_name_no_record_is_refused(result: object, complaint: str) -> None:
    @map_batch
    def bad(batch: pa.RecordBatch) -> object:
        return result

    with pytest.raises(StrategyError, match=complaint):
        apply(bad, records(VALUES))


def test_a_batch_map_may_filter_everything() -> None:
    @map_batch
    def nothing(batch: pa.RecordBatch) -> None:
        return None

    @map_batch
    def no_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(0, 0)

    for function in (nothing, no_rows):
        mapped = apply(function, records(VALUES))
        assert mapped.table is None
        assert not mapped.failures
