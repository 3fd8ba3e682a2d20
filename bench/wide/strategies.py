"""The strategies of `bench.wide`: a map for each record that makes one small dict, and four ways to write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from kmr import Record, Strategy
from kmr.sinks import ClickHouseWriter, RangeWriter

if TYPE_CHECKING:
    from kmr.sinks import RangeRows

TABLE = "wide"
DDL = (
    f"CREATE TABLE {TABLE} (id Int64, size Int64, topic LowCardinality(String), `partition` UInt32, "
    "`offset` UInt64, "
    "timestamp DateTime64(3, 'UTC'), seen DateTime64(3, 'UTC') DEFAULT now64(3)) "
    "ENGINE = MergeTree ORDER BY (topic, partition, offset) "
    "SETTINGS non_replicated_deduplication_window = 10000"
)


def small(record: Record) -> dict[str, Any]:
    """One small dict."""
    return {"id": record.offset, "size": len(record.value or b"")}


class Nothing(RangeWriter):
    """Forgets each range."""

    async def has(self, rows: RangeRows) -> bool:
        return False

    async def write(self, rows: RangeRows) -> None:
        pass


def _clickhouse(delivery: Literal["exactly-once", "at-least-once"]) -> Strategy:
    return Strategy(small, [ClickHouseWriter(TABLE, delivery=delivery)])


exactly = _clickhouse("exactly-once")
at_least = _clickhouse("at-least-once")
exactly_nothing = Strategy(small, [Nothing()])
at_least_nothing = Strategy(small, [Nothing(delivery="at-least-once")])
