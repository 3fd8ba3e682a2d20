"""The strategy of the README: a copy, so that mypy checks its types strictly."""

import sys

import msgspec

from kmr import Json, Strategy
from kmr.sinks import ClickHouseWriter, StreamWriter


class Order(msgspec.Struct):  # or a dataclass, TypedDict, pydantic model
    customer: str
    amount: float


def large(order: Order) -> Order | None:
    return order if order.amount >= 10 else None  # None: filtered, never written


strategy = Strategy(
    value=Json(Order),  # a value that does not fit fails alone
    map=large,  # so does a record for which the map raises
    reduce=ClickHouseWriter("orders", create=True),
    reduce_err=StreamWriter(sys.stdout),  # failed records
)
