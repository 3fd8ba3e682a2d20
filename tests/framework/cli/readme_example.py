"""The strategy of the README: a copy, so that mypy checks its types strictly."""

import sys

import msgspec

from kmr import Json, Record, Strategy, map_record
from kmr.sinks import ClickHouseWriter, StreamWriter


class Flight(msgspec.Struct):  # or a dataclass, TypedDict, pydantic model, pyarrow.Schema
    carrier: str
    dep_delay: float | None = None


class Delay(msgspec.Struct):
    carrier: str
    delay: float
    partition: int
    offset: int


@map_record
def parse(flight: Flight, record: Record) -> Delay | None:
    if flight.dep_delay is None:
        return None  # filtered: settled, and never written
    return Delay(flight.carrier, flight.dep_delay, record.partition, record.offset)


strategy = Strategy(
    value=Json(Flight),  # a value that does not fit goes to reduce_err, with the name of its field
    map=parse,  # an exception: the record goes to reduce_err
    reduce=[ClickHouseWriter(table="delays", max_rows=32_768, max_age=4.0)],
    reduce_err=StreamWriter(sys.stderr, max_age=1.0),
)
