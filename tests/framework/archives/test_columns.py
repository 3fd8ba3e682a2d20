"""Columns of Parquet files as the parts of records: ours, Redpanda's, and those of a mapping."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from kmr.archives.columns import ArchiveColumns, records_of
from kmr.errors import SettingsError

TIME = datetime(2026, 1, 2, 3, tzinfo=UTC)


def read(table: pa.Table, columns: str = "", **constants: object) -> list[dict[str, object]]:
    paths = ArchiveColumns.parse(columns).find(table.schema, "f.parquet")
    return records_of(table, paths, constants, "f.parquet").to_pylist()


def test_the_fields_of_the_struct_redpanda_are_found_without_a_mapping() -> None:
    redpanda = {
        "partition": 3,
        "offset": 7,
        "timestamp": TIME.replace(tzinfo=None),
        "key": b"k",
        "value": b"v",
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        "timestamp_type": 1,
    }
    (record,) = read(pa.table({"redpanda": [redpanda]}), topic="t")
    assert record == {
        "key": b"k",
        "value": b"v",
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": TIME,
        "timestampType": 1,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }


def test_a_mapping_names_columns_and_fields_and_text_is_bytes() -> None:
    table = pa.table(
        {
            "payload": ["v", None],
            "meta": [{"position": 4, "ms": 1500}, {"position": 5, "ms": 2500}],
            "tags": pa.array([[("a", b"1")], None], pa.map_(pa.string(), pa.binary())),
        }
    )
    given = "value=payload, offset=meta.position, timestamp=meta.ms, headers=tags"
    first, second = read(table, given, topic="t", partition=0)
    assert (first["value"], first["offset"], first["key"]) == (b"v", 4, None)
    assert first["timestamp"] == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert first["headers"] == [{"key": "a", "value": b"1"}]
    assert (second["value"], second["headers"]) == (None, None)


def test_lists_of_headers_keep_nulls_and_empty_lists() -> None:
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    headers: Any = pa.array([None, [], [{"key": "a", "value": b"x"}]], pa.list_(pair))
    table = pa.table({"offset": [1, 2, 3], "value": [b"", b"", b""], "headers": headers})
    for part in (table, table.slice(1)):
        found = [row["headers"] for row in read(part, topic="t", partition=0)]
        assert found == headers.to_pylist()[3 - len(found) :]


@pytest.mark.parametrize("text", ["value", "value=", "price=a", "value=a,value=b"])
def test_a_mapping_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="archive_columns must be pairs such as value=payload"):
        ArchiveColumns.parse(text)


def test_a_column_that_is_absent_or_has_no_bytes_is_named() -> None:
    table = pa.table({"offset": [1], "value": [1.5]})
    with pytest.raises(SettingsError, match=r"f\.parquet has no column body; it has offset, value"):
        read(table, "value=body")
    with pytest.raises(
        SettingsError, match=r"column value of f\.parquet is double, and cannot be the value"
    ):
        read(table, topic="t", partition=0)
