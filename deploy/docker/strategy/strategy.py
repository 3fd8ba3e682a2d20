"""The strategy of compose.yaml: records of the topic hits become rows of the table hits."""

import msgspec

from kmr import Json, Record, Strategy
from kmr.sinks import ClickHouseWriter, DeadLetterWriter


class Hit(msgspec.Struct):
    """The value of a record."""

    path: str
    status: int


class Row(msgspec.Struct):
    """A row of the table."""

    path: str
    status: int
    partition: int
    offset: int


def row(hit: Hit, record: Record) -> Row:
    """Add the record's place to its value."""
    return Row(hit.path, hit.status, record.partition, record.offset)


strategy = Strategy(
    value=Json(Hit),
    map=row,
    reduce=[ClickHouseWriter("hits", create=True)],
    reduce_err=DeadLetterWriter("hits-dead"),
)
