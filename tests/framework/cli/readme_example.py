"""The strategy of the README: a copy, so that mypy checks its types strictly."""

import sys

import msgspec

from kmr import Json, Record, Strategy, map_record
from kmr.sinks import ClickHouseWriter, StreamWriter


class Order(msgspec.Struct):  # or a dataclass, TypedDict, pydantic model, pyarrow.Schema
    customer: str
    amount: float


class Row(msgspec.Struct):
    customer: str
    amount: float
    partition: int
    offset: int


@map_record
def large(order: Order, record: Record) -> Row | None:
    if order.amount < 10:
        return None  # filtered: settled, and never written
    return Row(order.customer, order.amount, record.partition, record.offset)


strategy = Strategy(
    value=Json(Order),  # a value that does not fit fails alone, with the name of its field
    map=large,  # so does a record for which the map raises
    reduce=[ClickHouseWriter("orders", create=True)],
    reduce_err=StreamWriter(sys.stdout),  # failed records
)
