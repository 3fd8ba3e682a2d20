"""A declared type of a per-record map's column changes no value: it is kept, or refused by name."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kmr.mapping.functions import apply, map_record
from kmr.mapping.kept import changed
from kmr.record import Record
from kmr.testing import batch_of

OBJECT = pa.struct([("a", pa.int64())])
NESTED = pa.struct([("of", pa.list_(OBJECT))])
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "kept", "refused"),
    [
        (pa.int64(), [1, 1.0, Decimal(2), np.int64(3)], [1.5, Decimal("1.5"), np.float64(0.5)]),
        (pa.int8(), [1], [0.5, 1.5]),
        (pa.float32(), [0.1, 1, 16777216], [1e300]),
        (pa.float64(), [0.1, 1, True], []),
        (pa.date32(), [date(2026, 1, 1)], [NOON]),
        (pa.timestamp("ms", "UTC"), [NOON], [NOON.replace(microsecond=5)]),
        (pa.time64("us"), [time(1)], [time(1, tzinfo=UTC)]),
        (pa.duration("us"), [timedelta(1), 5], [1.5]),
        (pa.duration("s"), [timedelta(1)], [timedelta(milliseconds=1)]),
        (OBJECT, [{"a": 1}, {}, {"a": None}, {"a": 2.0}], [{"a": 0.5}, {"a": 1, "z": 2}]),
        (NESTED, [{"of": [{"a": 1}]}, {"of": []}], [{"of": [{"a": 1, "z": 1}]}]),
        (pa.list_(pa.int64()), [[1], [], [None], (1, 2)], [[2.5], [1, 0.5]]),
        (pa.map_(pa.string(), pa.int64()), [{"a": None}, {}, [("a", 1)]], [{"a": 0.5}]),
        (pa.dictionary(pa.int32(), pa.string()), ["a"], []),
    ],
    ids=str,
)
def test_a_value_that_a_declared_type_would_change_is_refused_and_those_beside_it_are_kept(
    kind: pa.DataType, kept: list[Any], refused: list[Any]
) -> None:
    values = [*kept, None, *refused]
    assert list(changed(values, kind)) == list(range(len(kept) + 1, len(values)))

    @map_record(schema=pa.schema([("x", kind)]))
    def declared(record: Record) -> dict[str, Any]:
        return {"x": values[record.offset]}

    mapped = apply(declared, batch_of("t", 0, 0, [b""] * len(values)).records)
    assert mapped.offsets.tolist() == list(range(len(kept) + 1))
    assert all("column x: " in str(failure.reason) for failure in mapped.failures)
    assert mapped.table is not None
    assert mapped.table.column("x").combine_chunks() == pa.array([*kept, None], kind)
