"""Values of pandas and NumPy, and of odd zones, in the rows of a function."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kmr.mapping.results import from_rows

FINE = pd.Timestamp("2026-01-01 00:00:00.123456789")
NANOSECONDS = 1_767_225_600_123_456_789


def column(*values: Any, kind: pa.DataType | None = None) -> tuple[pa.Array[Any] | None, list[str]]:
    """The column that rows with these values make, and the reasons of those that fail."""
    schema = None if kind is None else pa.schema({"v": kind})
    mapped = from_rows(schema, [{"v": each} for each in values], range(len(values)), [])
    made = None if mapped.table is None else mapped.table.column("v").combine_chunks()
    return made, [failure.reason for failure in mapped.failures]


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("beside", [None, datetime(2026, 1, 1)])  # noqa: DTZ001
def test_a_timestamp_of_pandas_keeps_its_nanoseconds(zone: str | None, beside: Any) -> None:
    value = FINE if zone is None else FINE.tz_localize("UTC").tz_convert(zone)
    if beside is not None and zone is not None:
        beside = beside.replace(tzinfo=UTC)
    made, failed = column(value, beside)
    assert failed == []
    assert made is not None
    assert made.type == pa.timestamp("ns", None if zone is None else "UTC")
    assert made.view(pa.int64())[0].as_py() == NANOSECONDS


def test_times_of_pandas_inside_of_lists_and_objects_keep_their_nanoseconds() -> None:
    made, failed = column({"at": [FINE], "took": pd.Timedelta("1ns")})
    assert failed == []
    assert made is not None
    assert made.type.field("took").type == pa.duration("ns")
    assert pc.struct_field(made, "at").flatten().view(pa.int64()).to_pylist() == [NANOSECONDS]


@pytest.mark.parametrize("value", [FINE, FINE.to_datetime64(), [FINE], [FINE.to_datetime64()]])
def test_nanoseconds_do_not_fit_a_column_of_microseconds(value: Any) -> None:
    micro, nano = pa.timestamp("us"), pa.timestamp("ns")
    nested = isinstance(value, list)
    made, failed = column(value, kind=pa.list_(micro) if nested else micro)
    assert made is None
    assert "cannot hold" in failed[0]
    made, failed = column(value, kind=pa.list_(nano) if nested else nano)
    assert failed == []


def test_missing_values_of_pandas_and_masked_items_are_null() -> None:
    made, failed = column(pd.NA, pd.NaT, 5)
    assert (failed, made.to_pylist() if made is not None else None) == ([], [None, None, 5])
    made, failed = column(np.ma.masked_array([1, 2], [False, True]))
    assert (failed, made.to_pylist() if made is not None else None) == ([], [[1, None]])


def test_a_time_whose_offset_has_seconds_is_the_same_time_in_utc() -> None:
    zone = timezone(timedelta(hours=5, seconds=13))
    made, failed = column(datetime(2026, 1, 1, 5, 0, 13, tzinfo=zone))
    assert failed == []
    assert made is not None
    assert made.view(pa.int64()).to_pylist() == [1_767_225_600_000_000]
