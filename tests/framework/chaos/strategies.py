"""Strategies of these tests; workers import them too."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from kmr import Distinct, Json, Record, Strategy, Window, map_record
from kmr.delivery.failures import RowLetters
from kmr.delivery.row_letters import ROW
from kmr.sinks import ClickHouseWriter, DeadLetterWriter, KafkaWriter, ParquetWriter, StreamWriter

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


class Located(msgspec.Struct):
    """A row that names its record."""

    customer: str
    partition: int
    offset: int


@map_record
def located(order: Order, record: Record) -> Located:
    """Keep every order."""
    return Located(order.customer, record.partition, record.offset)


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
    reduce=[ClickHouseWriter("orders", create=True)],
    reduce_err=StreamWriter("stderr"),
)
LOSING = replace(
    ORDERS,
    map=located,
    reduce=[LosingWriter(os.environ.get("CHAOS_TEST_FILES", "files"))],
    reduce_err=DeadLetterWriter("orders-dead"),
)
TOPIC = replace(ORDERS, map=located, reduce=[KafkaWriter("results", value="json")])
STREAM = replace(ORDERS, reduce=[StreamWriter("stdout", max_rows=7)], reduce_err=None)


class RefusingWriter(ClickHouseWriter):
    """A table that refuses the windows of every third customer."""

    def create_statement(self, declared: pa.Schema | None = None) -> str:
        """Add the rule."""
        columns, engine, rest = super().create_statement(declared).partition("\n)\nENGINE")
        rule = "CONSTRAINT known CHECK cityHash64(customer) % 3 != 0"
        return f"{columns},\n{rule}{engine}{rest}"


WINDOWS = Strategy(
    value=Json(Order),
    reduce=[
        Window(
            "500ms",
            time="timestamp",
            by=["customer"],
            columns={"n": ("*", "count")},
            lateness="200ms",
            late="dead-letter",
            idle="1s",
        ),
        RefusingWriter("order_windows", max_age=0.3),
    ],
    reduce_err=DeadLetterWriter("orders-dead", max_age=0.3),
)
"""Of its rows, some are refused."""


class LosingLetters(DeadLetterWriter):
    """The guarantee is broken: of the letters of rows, the first of each flush is gone."""

    def add(self, rows: Rows) -> None:
        """Drop it."""
        super().add(
            replace(rows, table=rows.table.slice(1)) if isinstance(rows, RowLetters) else rows
        )


class DoublingLetters(DeadLetterWriter):
    """The guarantee is broken: each letter of a row is there once more, under another name."""

    def add(self, rows: Rows) -> None:
        """Write it twice."""
        super().add(rows)
        if isinstance(rows, RowLetters):
            letters = rows.table.to_pylist()
            for letter in letters:
                letter["headers"] = [{"key": ROW, "value": b"other"}]
            super().add(replace(rows, table=pa.Table.from_pylist(letters, rows.table.schema)))


LETTERS_LOST = replace(WINDOWS, reduce_err=LosingLetters("orders-dead", max_age=0.3))
LETTERS_DOUBLED = replace(WINDOWS, reduce_err=DoublingLetters("orders-dead", max_age=0.3))

DISTINCT = Strategy(
    value=Json(Order),
    reduce=[
        Distinct("customer", "700ms"),
        ClickHouseWriter("distinct_orders", create=True, max_age=0.5),
    ],
)
"""Drops orders that are sent again."""
