"""The demo's strategies. Run one by hand:

kmr run demo.pipeline:strategy --topic flights --group demo
"""

from __future__ import annotations

import sys
from datetime import datetime  # noqa: TC003  msgspec reads the annotations at run time
from typing import TYPE_CHECKING, Any

import msgspec

from kmr import Record, Strategy, map_batch
from kmr.sinks import ClickHouseWriter, StreamWriter

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ingest", "strategy"]


class Flight(msgspec.Struct):
    """One message of the topic `flights`; times are minutes, `None` where a flight was cancelled."""

    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    time_hour: datetime
    dep_delay: int | None
    arr_delay: int | None
    air_time: int | None
    distance: int


decode = msgspec.json.Decoder(Flight).decode


def parse(record: Record) -> dict[str, Any] | None:
    """One row per flight; a message that is no flight raises, and goes to `reduce_err`."""
    if record.value is None:
        return None
    return msgspec.structs.asdict(decode(record.value))


@map_batch
def locate(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The time of each record; its place is filled in. Works for the records of any topic."""
    return batch.select(["timestamp", "kmr_offset"])


strategy = Strategy(
    map=parse,
    reduce=[ClickHouseWriter(table="flights", max_rows=32_768, max_age=1.0)],
    reduce_err=StreamWriter(sys.stderr, max_age=1.0),
)

ingest = Strategy(
    map=locate,
    reduce=[ClickHouseWriter(table="kmr_consumer_ingest", max_rows=131_072, max_age=1.0)],
    reduce_err=StreamWriter(sys.stderr, max_age=1.0),
)
