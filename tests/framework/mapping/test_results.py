"""The results of map functions as columns: types, schemas, offsets, and results that are refused."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.errors import StrategyError
from kmr.mapping.functions import apply, map_batch, map_record
from kmr.mapping.results import bytes_made, columns_of, from_rows
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


def test_rows_with_as_many_keys_but_others_are_not_taken_for_equal() -> None:
    rows = [{"a": 1, "b": 2}, {"a": 3, "c": 4}, defaultdict(int, {"a": 5, "d": 6})]

    @map_record
    def varied(record: Record) -> dict[str, int]:
        return rows[record.offset - 10]

    mapped = apply(varied, records([b"", b"", b""]))
    assert mapped.table is not None
    assert mapped.table.to_pylist() == [
        {"a": 1, "b": 2, "c": None, "d": None},
        {"a": 3, "b": None, "c": 4, "d": None},
        {"a": 5, "b": None, "c": None, "d": 6},
    ]
    assert [len(row) for row in rows] == [2, 2, 2]


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


@map_record
def echoed(record: Record) -> dict[str, object]:
    """Return the value that the test stored under the record's offset."""
    return {"a": VALUES_BY_OFFSET[record.offset]}


VALUES_BY_OFFSET: dict[int, object] = {}


def echo(monkeypatch: pytest.MonkeyPatch, values: list[object]) -> tuple[list[object], list[int]]:
    """Map these values; return the delivered ones, and the positions of the failed ones."""
    monkeypatch.setitem(globals(), "VALUES_BY_OFFSET", dict(enumerate(values)))
    mapped = apply(echoed, records([b""] * len(values), first=0))
    delivered = [] if mapped.table is None else mapped.table.column("a").to_pylist()
    assert mapped.offsets.tolist() == sorted(
        set(range(len(values))) - {f.offset for f in mapped.failures}
    )
    return delivered, [failure.offset for failure in mapped.failures]


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "delivered", "failed"),
    [
        (["bad", 1, 2, 3], [1, 2, 3], [0]),
        ([1, "bad", 2, "worse", 3], [1, 2, 3], [1, 3]),
        (["a", "b", 7], ["a", "b"], [2]),
        (["bad", 1], [1], [0]),
        (["x", 1, "y", 2.5, None, 3], [1.0, 2.5, None, 3.0], [0, 2]),
        ([1.5, 2**60 + 1, "x", 2], [1.5, 2.0], [1, 2]),
        ([2**70, 1], [1], [0]),
        (["\ud800", "text"], ["text"], [0]),
        ([object(), 1], [1], [0]),
        ([NOON, 5, NOON], [NOON, NOON], [1]),
        ([{"k": "bad"}, {"k": 1}, {"k": 2, "l": 3}], [{"k": 1, "l": None}, {"k": 2, "l": 3}], [0]),
        ([[1], ["x"], [], [2]], [[1], [], [2]], [1]),
        ([True, 1, 0], [1, 0], [0]),
        ([2**70, object()], [], [0, 1]),
        ([2**60 + 1, 2**60 + 3, 0.5, 2.0], [2**60 + 1, 2**60 + 3, 2], [2]),
        # beside a value of another type those that have no type of their own fit
        (
            [{"k": [{"l": 1}]}, {"k": []}, {"k": [{"l": "x"}]}, {"k": None}, {"k": [{}]}],
            [{"k": [{"l": 1}]}, {"k": []}, {"k": None}, {"k": [{"l": None}]}],
            [2],
        ),
        ([Decimal("NaN"), Decimal(1)], [Decimal(1)], [0]),
        ([timedelta.max, timedelta(1)], [timedelta(1)], [0]),
    ],
)
def test_the_type_that_fits_most_values_wins_and_only_the_others_fail(
    monkeypatch: pytest.MonkeyPatch,
    values: list[object],
    delivered: list[object],
    failed: list[int],
) -> None:
    assert echo(monkeypatch, values) == (delivered, failed)


@given(
    st.lists(
        st.one_of(st.integers(), st.floats(allow_nan=False), st.text(), st.none()),
        min_size=1,
        max_size=12,
    ).flatmap(lambda values: st.tuples(st.just(values), st.permutations(values)))
)
def test_the_order_of_the_values_does_not_decide_which_of_them_fail(
    orders: tuple[list[object], list[object]],
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        (one, _), (other, _) = (echo(monkeypatch, values) for values in orders)
    assert Counter(map(repr, one)) == Counter(map(repr, other))


@dataclass
class Untyped:
    a: object


def test_a_row_of_a_class_whose_fields_have_any_type_is_a_row_or_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values: list[object] = [1, 2, Untyped(Untyped(3)), 4]
    assert echo(monkeypatch, values) == ([1, 2, 4], [2])
    rows = {0: {"a": 1}, 1: Untyped(2)}

    @map_record
    def untyped(record: Record) -> Any:
        return rows[record.offset]

    mapped = apply(untyped, records([b"", b""], first=0))
    assert mapped.table is not None
    assert mapped.table.to_pydict() == {"a": [1, 2]}


def test_a_column_that_only_failed_records_have_is_not_made() -> None:
    @map_record
    def explained(record: Record) -> dict[str, object]:
        return {"a": "bad", "why": "broken"} if record.offset == 10 else {"a": 1}

    mapped = apply(explained, records([b""] * 3))
    assert mapped.table is not None
    assert mapped.table.to_pydict() == {"a": [1, 1]}


def test_a_value_that_fits_no_column_fails_all_rows_of_its_record() -> None:
    @map_record
    def two_rows(record: Record) -> list[dict[str, object]]:
        return [{"a": 1}, {"a": "bad" if record.offset == 11 else 2}]

    mapped = apply(two_rows, records([b""] * 3))
    assert mapped.offsets.tolist() == [10, 10, 12, 12]
    assert [f.offset for f in mapped.failures] == [11]


def test_the_parts_of_a_bisected_batch_decide_their_types_together() -> None:
    @map_batch
    def strict(batch: pa.RecordBatch) -> pa.Table:
        values = batch.column("value").to_pylist()
        if b"poison" in values:
            raise ValueError("poison inside")
        column: list[Any] = ["bad" if value == b"x" else 7 for value in values]
        return pa.table({"kmr_offset": batch.column("offset"), "a": pa.array(column)})

    mapped = apply(strict, records([b"x", b"poison", b"1", b"2"]))
    assert mapped.offsets.tolist() == [12, 13]
    assert [f.offset for f in mapped.failures] == [10, 11]


@pytest.mark.parametrize("wrong", [7, "text", [1], b"x"])
def test_a_result_that_can_be_no_row_fails_its_record_alone(wrong: object) -> None:
    @map_record
    def bad(record: Record) -> object:
        return wrong if record.offset == 10 else {"o": record.offset}

    mapped = apply(bad, records([b"", b""]))
    assert mapped.offsets.tolist() == [11]
    assert [failure.offset for failure in mapped.failures] == [10]
    kind = type(wrong).__name__
    assert mapped.failures[0].reason.startswith(f"TypeError: the map returned {kind}; return a row")


def test_a_generator_may_fill_one_dict_anew_for_each_row() -> None:
    def numbers(record: Record) -> Iterator[dict[str, int]]:
        row = {}
        for number in range(3):
            row["n"] = number
            yield row

    mapped = apply(numbers, records(VALUES[:1]))
    assert mapped.table is not None
    assert mapped.table.to_pylist() == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_batch_map_may_name_the_input_row_of_each_output_row() -> None:
    @map_batch
    def kept(batch: pa.RecordBatch) -> tuple[pa.Table, list[int]]:
        return pa.table({"v": ["b", "b again", "d"]}), [1, 1, 3]

    assert apply(kept, records(VALUES)).offsets.tolist() == [11, 11, 13]


def test_a_batch_map_may_give_a_mask_of_its_input_rows_or_none_at_all() -> None:
    @map_batch
    def masked(batch: pa.RecordBatch) -> tuple[pa.Table, Any]:
        return pa.table({"v": ["b", "d"]}), pa.array([False, True, False, True])

    @map_batch
    def nothing(batch: pa.RecordBatch) -> tuple[pa.Table, list[int]]:
        return pa.table({"v": []}), []

    assert apply(masked, records(VALUES)).offsets.tolist() == [11, 13]
    assert apply(nothing, records(VALUES)).table is None


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
        (pa.table({"v": [1], "offset": [10]}), "without `kmr_offset`"),
        (pa.table({"kmr_offset": ["1"]}), "changed the column `kmr_offset`"),
        (pa.table({"kmr_offset": [99]}), "offsets 99 to 99, but its batch holds 10 to 13"),
        ((pa.table({"v": [1, 2]}), [0]), "2 rows and 1 `keep`"),
        ((pa.table({"v": [1, 2]}), [0, 4]), "returned 4 in `keep`; its batch has the rows 0 to 3"),
        ((pa.table({"v": [1]}), [-1]), "returned -1 in `keep`"),
        ((pa.table({"v": [1]}), pa.array([0.5])), "`keep` of shape .1,. and type float64"),
        ((pa.table({"v": [1]}), [None]), "`keep` of shape .1,. and type object"),
        ((pa.table({"v": [1]}), [[0]]), "`keep` of shape .1, 1."),
        ((pa.table({"v": [1, 2]}), [[0], [1, 2]]), "`keep` of shape .. and type object"),
        (pa.table({"kmr_offset": [10]}), "returned rows without columns"),
        ((pa.table({"v": [1]}), [True]), "`keep` of shape .1,. and type bool"),
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


def test_rows_cost_the_buffers_that_they_do_not_share_with_the_records() -> None:
    batch = batch_of("t", 0, 0, [b"x" * 1_000] * 100)
    large = pa.array(range(100_000))

    @map_batch
    def shared(columns: pa.RecordBatch) -> pa.RecordBatch:
        return columns.select(["kmr_offset", "value"]).slice(50, 10)

    @map_batch
    def added(columns: pa.RecordBatch) -> pa.RecordBatch:
        twice = pa.array(range(100), pa.int64())
        return (
            columns.select(["kmr_offset", "value"])
            .append_column("a", twice)
            .append_column("b", twice)
        )

    @map_batch
    def a_slice_of_more(columns: pa.RecordBatch) -> pa.RecordBatch:
        return columns.select(["kmr_offset"]).append_column("a", large.slice(0, 100))

    def cost(function: object) -> int:
        mapped = apply(function, batch.records)  # type: ignore[arg-type]  # each is a map function
        return bytes_made(batch, mapped) - mapped.offsets.nbytes

    assert cost(shared) == 0
    assert cost(added) == 100 * 8
    assert cost(a_slice_of_more) == 100_000 * 8


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ([5, UUID(int=1), 6], [1]),
        ([1.5, True, 2.5], [1]),
        ([0.5, np.uint64(2**64 - 1), 1.5], [1]),
        ([time(1, tzinfo=UTC), time(2), time(3)], [0]),
        ([datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=5)))], [0]),  # noqa: DTZ001
    ],
    ids=lambda each: str(each)[:20],
)
def test_a_value_of_another_class_is_itself_or_is_refused(
    values: list[Any], refused: list[int]
) -> None:
    rows = [{"v": value} for value in values]
    mapped = from_rows(None, rows, list(range(len(rows))), [])
    assert [failure.offset for failure in mapped.failures] == refused
    assert mapped.table is not None
    kept = [value for row, value in enumerate(values) if row not in refused]
    for found, value in zip(mapped.table["v"].to_pylist(), kept, strict=True):
        assert found == value


def test_two_columns_of_one_name_are_refused_with_it() -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["v", "v"])
    with pytest.raises(StrategyError, match="returned two columns v"):
        columns_of(len, twice)


def _endless(kind: str) -> Any:
    if kind == "mapping":
        return Endless()
    inner: list[Any] = []
    if kind == "deep":
        for _ in range(40_000):
            inner = [inner]
        return inner
    inner.append({"a": inner})
    return inner if kind == "list" else inner[0]


class Endless(Mapping[str, Any]):
    """A mapping that contains itself."""

    def __getitem__(self, name: str) -> Any:
        return self

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("kind", ["list", "dict", "mapping", "deep"])
def test_a_value_that_never_ends_fails_its_record_and_not_the_process(kind: str) -> None:
    @map_record
    def map_(record: Record) -> dict[str, Any]:
        return {"a": _endless(kind) if record.offset in (11, 13) else [record.offset]}

    mapped = apply(map_, records([b""] * 5))
    assert mapped.offsets.tolist() == [10, 12, 14]
    assert [f.offset for f in mapped.failures] == [11, 13]
    assert "contains itself, or is nested more than 100 levels deep" in mapped.failures[0].reason


def test_text_beside_bytes_inside_of_a_value_is_no_text_that_is_not_utf8() -> None:
    mapped = from_rows(None, [{"v": ["a", b"\xff"]}, {"v": ["b"]}], [0, 1], [])
    assert mapped.table is not None
    assert mapped.table.to_pylist() == [{"v": ["b"]}]
    assert "column v: no type of a column holds ['a', b'\\xff']" in mapped.failures[0].reason
