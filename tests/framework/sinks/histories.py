"""Random histories of a table: the topic that Debezium writes, and the rows at the end."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from kmr import Debezium, Json
from kmr.delivery.announcement import Announcement
from kmr.record import Range, Rows
from kmr.reducers.sink import Write

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from kmr.values.value_format import ValueFormat

KEYS = st.integers(0, 3)
TEXTS = st.text("abc", max_size=2)


class Customer(msgspec.Struct):
    id: int
    name: str
    note: str | None = None


OPERATIONS = st.one_of(
    st.tuples(st.just("put"), KEYS, TEXTS),
    st.tuples(st.just("put"), KEYS, TEXTS),
    st.tuples(st.just("delete"), KEYS, st.just("")),
    st.tuples(st.just("move"), KEYS, KEYS),
    st.tuples(st.just("truncate"), st.just(0), st.just("")),
)


@dataclass
class History:
    """A table, and the topic that follows it.

    Attributes:
        table: the names by id, now.
        topic: the values of each partition, in order.
    """

    partitions: int
    table: dict[int, str] = field(default_factory=dict)
    topic: list[list[bytes | None]] = field(default_factory=list)
    lsn: int = 100

    def __post_init__(self) -> None:
        self.topic = [[] for _ in range(self.partitions)]

    @classmethod
    def of(cls, operations: Iterable[tuple[str, int, Any]], partitions: int) -> History:
        """Return the history of a table that is empty at first."""
        history = cls(partitions)
        for operation in operations:
            history.apply(operation)
        return history

    @classmethod
    def random(
        cls, chance: Random, operations: int, partitions: int, *, truncates: float
    ) -> History:
        """Return a history of a dozen keys; `truncates` is the share of truncates."""
        history = cls(partitions)
        for _ in range(operations):
            key, kind = chance.randrange(12), chance.random()
            if kind < 0.6:
                history.apply(("put", key, f"name {chance.randrange(100)}"))
            elif kind < 0.8:
                history.apply(("delete", key, ""))
            elif kind < 1 - truncates:
                history.apply(("move", key, chance.randrange(12)))
            else:
                history.apply(("truncate", 0, ""))
        return history

    def apply(self, operation: tuple[str, int, Any]) -> None:
        kind, key, more = operation
        self.lsn += 8
        if kind == "put":
            op = "u" if key in self.table else "c"
            self.table[key] = more
            self.send(key, op, None, key)
        elif kind == "delete" and key in self.table:
            del self.table[key]
            self.send(key, "d", {"id": key}, None)
            self.put(key, None)
        elif kind == "move" and key in self.table and more not in self.table:
            self.table[more] = self.table.pop(key)
            self.send(key, "d", {"id": key}, None)
            self.put(key, None)
            self.send(more, "c", None, more)
        elif kind == "truncate" and self.partitions == 1:
            self.table.clear()
            self.send(0, "t", None, None)

    def send(self, key: int, op: str, before: Any, after: int | None) -> None:
        row = None if after is None else {"id": after, "name": self.table[after], "note": None}
        source = {"connector": "postgresql", "ts_ms": 1_700_000_000_000 + self.lsn, "lsn": self.lsn}
        envelope = {"before": before, "after": row, "source": source, "op": op, "ts_ms": 1}
        self.put(key, msgspec.json.encode(envelope))

    def put(self, key: int, value: bytes | None) -> None:
        self.topic[zlib.crc32(bytes([key])) % self.partitions].append(value)


def rows_of(
    values: list[bytes | None], first: int, partition: int = 0, inner: ValueFormat | None = None
) -> Rows:
    """The rows of consecutive records, as a strategy without a map makes them."""
    format_ = inner or Debezium(Json(Customer), truncates="apply")
    columns, failures = format_.decode(pa.array(values, pa.binary()))
    assert not failures, failures
    kept = columns.column("op").is_valid().to_numpy(zero_copy_only=False)
    offsets = np.arange(first, first + len(values))
    table = pa.Table.from_batches([columns]).filter(pa.array(kept))
    return Rows(table, (Range("t", partition, first, first + len(values) - 1),), offsets[kept])


def announced(rows: Rows, *, repeated: bool = False) -> Write:
    """What the worker says of a range that it has announced."""
    whole = rows.ranges[0]
    token = f"g:t:{whole.partition}:{whole.first}-{whole.last}"
    return Write(Announcement(whole.first, whole.last, token, "w"), repeated=repeated)
