"""Strategies of these tests; workers import them too."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from kmr import Batcher, Json, Record, Strategy, map_record
from kmr.sinks import ClickHouseWriter, KafkaWriter, ParquetWriter, StreamWriter

if TYPE_CHECKING:
    from kmr.types import Rows


class Order(msgspec.Struct):
    """The value of a record."""

    customer: str
    amount: float


class Row(msgspec.Struct):
    """A row."""

    customer: str
    amount: float


@map_record
def large(order: Order, record: Record) -> Row | None:
    """Leave out orders below 10."""
    return None if order.amount < 10 else Row(order.customer, order.amount)


class LosingWriter(ParquetWriter):
    """The guarantee is broken: of each range the row of every 50th offset is gone."""

    def add(self, rows: Rows) -> None:
        """Drop some of them."""
        assert rows.offsets is not None
        keep = rows.offsets % 50 != 7
        kept = replace(rows, table=rows.table.filter(keep.tolist()), offsets=rows.offsets[keep])
        super().add(kept)


ORDERS = Strategy(
    value=Json(Order),
    map=large,
    reduce=[ClickHouseWriter("orders", create=True, url="http://nowhere.invalid:8123/shop")],
    reduce_err=StreamWriter("stderr"),
)
LOSING = replace(ORDERS, reduce=[LosingWriter("s3://nowhere.invalid/orders")])
CHAIN = replace(ORDERS, reduce=[Batcher(max_rows=100), ClickHouseWriter("orders", create=True)])
TOPIC = replace(
    ORDERS,
    reduce=[KafkaWriter("results", bootstrap_servers="nowhere.invalid:9092", value="customer")],
)
STREAM = replace(ORDERS, reduce=[StreamWriter("stdout", max_rows=7)], reduce_err=None)
