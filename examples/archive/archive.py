"""Archive a topic: its records, as they are, into Parquet files by topic and partition."""

import os

import pyarrow as pa

from kmr import Strategy, map_batch
from kmr.sinks import ParquetWriter


@map_batch
def raw(records: pa.RecordBatch) -> tuple[pa.RecordBatch, list[bool]]:
    """Return the records with all their columns: key, value, timestamp, headers and coordinates."""
    return records, [True] * len(records)


strategy = Strategy(
    map=raw,
    reduce=ParquetWriter(
        os.environ.get("ARCHIVE", "archive"),
        partition_by=("topic", "partition"),
        max_rows=1_000_000,
    ),
)
