"""Batches as rows of Spark: the schema of its Kafka source, and our columns in exactly that shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["COLUMNS", "HEADERS", "REPORT_SCHEMA", "arrow_schema", "conform"]

COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp,"
    " timestampType int"
)
"""The schema of Spark's Kafka source, as DDL."""

HEADERS = "headers array<struct<key string, value binary>>"
"""One more column, with the option `includeHeaders`."""

REPORT_SCHEMA = (
    f"{COLUMNS}, {HEADERS}, reason string, stage string, attempt int, rows binary, report binary"
)
"""What tasks tell the driver: the columns of a failed record; or where rows begin, and `rows`; or `report`;
all others null."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of batches for this schema, down to the nullability."""
    from pyspark.sql.pandas.types import to_arrow_schema

    expected: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return expected


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`, with its types to the letter; costs nothing where they are the same."""
    columns: list[Any] = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for field, column in ((field, batch.column(field.name)) for field in schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
