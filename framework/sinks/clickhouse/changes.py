"""Changes in a ReplacingMergeTree: every row has a version, and a deleted one the mark `_is_deleted`.

The version is a UInt256: the position in the source's log (192 bits), then the record's offset (64 bits). So
a change that is written again, late or in another order never replaces a later one, whatever merges do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from clickhouse_connect.driver.binding import quote_identifier

from ...columns.kinds import whole
from ...errors import StrategyError
from ...record import Rows
from .ddl import TYPE_KEY, TableLayout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..changes import Applied, Changes
    from ..planning import RangeRows
    from .client import ClickHouseConnection
    from .table import ClickHouseTable

VERSION: Final = "_version"
DELETED: Final = "_is_deleted"
_OWN: Final[list[pa.Field[Any]]] = [
    pa.field(VERSION, pa.binary(32), nullable=False, metadata={TYPE_KEY: b"UInt256"}),
    pa.field(DELETED, pa.uint8(), nullable=False, metadata={TYPE_KEY: b"UInt8"}),
]
_ARGUMENTS: Final = f"{VERSION}, {DELETED}"
_ENGINE: Final = re.compile(rf"ReplacingMergeTree\([^()]*\b{VERSION}, {DELETED}\)")
_DEFINITION: Final = """
SELECT engine_full, sorting_key FROM system.tables
WHERE database = {database:String} AND name = {table:String}"""


class PreparedRows(NamedTuple):
    """Changes of a range as rows of the table.

    Attributes:
        rows: the rows to insert.
        applied: which changes they come from.
        truncate: the statement that deletes the rows before a truncate; None without one.
    """

    rows: RangeRows
    applied: Applied
    truncate: str | None


@dataclass(frozen=True, slots=True)
class Versions:
    """Keeps a table of ClickHouse in step with changes."""

    changes: Changes

    def layout(self, layout: TableLayout) -> TableLayout:
        """Return how the table is made. Raises StrategyError if the user wants it otherwise."""
        key = self.changes.key
        if layout.engine is not None:
            raise StrategyError(
                "ClickHouseWriter(changes=True) makes a ReplacingMergeTree: remove engine="
            )
        if layout.order_by is not None and set(layout.order_by) != set(key):
            raise StrategyError(
                f"ClickHouseWriter(changes=True): order_by must have the columns of key={list(key)}, in any "
                "order: rows that differ in another column would not replace each other"
            )
        replicated = "" if layout.cluster is None else "Replicated"
        engine = f"{replicated}ReplacingMergeTree({_ARGUMENTS})"
        return replace(layout, order_by=layout.order_by or key, engine=engine)

    def columns(self, declared: pa.Schema) -> pa.Schema:
        """Return the columns of the table for changes with the declared columns."""
        rows = [field for field in declared if field.name not in (VERSION, DELETED)]
        return pa.schema([*self.changes.columns(pa.schema(rows)), *_OWN])

    async def check(self, connection: ClickHouseConnection, table: ClickHouseTable) -> None:
        """Check that the table keeps the last version of each key. Raises StrategyError if it does not."""
        where = {"database": table.database, "table": table.name}
        (found,) = await connection.rows(_DEFINITION, where)
        types = {column.name: column.type_name for column in table.columns}
        if (
            _ENGINE.search(found["engine_full"]) is None
            or types.get(VERSION) != "UInt256"
            or types.get(DELETED) != "UInt8"
        ):
            raise StrategyError(
                f"{table} ({table.engine}) cannot take changes: it must be a "
                f"ReplacingMergeTree({_ARGUMENTS}) with the columns {VERSION} UInt256 and {DELETED} UInt8. "
                "Create it so, or set create=True for a table that does not exist yet"
            )
        order = {part.strip(" `()") for part in found["sorting_key"].split(",")}
        if order != set(self.changes.key):
            raise StrategyError(
                f"{table} is ordered by {found['sorting_key']}, and key= names "
                f"{', '.join(self.changes.key)}: rows of one key would not replace each other. Make both the "
                "same"
            )

    def prepare(self, insert: RangeRows, table: ClickHouseTable) -> PreparedRows:
        """Return the rows to insert for the changes of a range.

        Raises:
            StrategyError: the rows are no changes, or nothing orders them.
        """
        names = [column.name for column in table.columns]
        given = insert.table
        applied = self.changes.apply(given, names)
        versions = _versions(insert, given)
        rows = applied.table
        if taken := [name for name in (VERSION, DELETED) if name in rows.column_names]:
            raise StrategyError(
                f"the rows for {table} have a column {taken[0]} of their own; give it another name"
            )
        rows = rows.append_column(VERSION, _column(versions[applied.source]))
        rows = rows.append_column(DELETED, pa.array(applied.deleted.astype(np.uint8)))
        kept = _complete(rows, applied, table)
        if not kept.all():
            rows = rows.filter(pa.array(kept))
            applied = applied._replace(deleted=applied.deleted[kept], source=applied.source[kept])
        token = insert.token
        if (
            insert.repeated
        ):  # the table may have forgotten the rows, not the token; versions make it harmless
            token = f"{token}/again-{uuid4().hex}"
        part = Rows(rows, insert.ranges)
        truncate = None
        if applied.truncated is not None:
            truncate = self._truncate(table, versions[applied.truncated])
        return PreparedRows(replace(insert, token=token, parts=(part,)), applied, truncate)

    def _truncate(self, table: ClickHouseTable, version: NDArray[np.uint64]) -> str:
        """Return the statement that deletes all rows that are older than a truncate."""
        number = sum(int(word) << (64 * at) for at, word in enumerate(version))
        key = ", ".join(map(quote_identifier, self.changes.key))
        return (
            f"INSERT INTO {table.identifier} ({key}, {VERSION}, {DELETED}) "  # noqa: S608  quoted
            f"SELECT {key}, toUInt256('{number}'), 1 FROM {table.identifier} FINAL "
            f"WHERE {VERSION} < toUInt256('{number}')"
        )


def _versions(insert: RangeRows, table: pa.Table) -> NDArray[np.uint64]:
    """Return the version of each change: four words of 64 bits, the least significant first."""
    count = table.num_rows
    words = np.zeros((count, 4), np.uint64)
    has_position = "position" in table.column_names
    positions: Any = whole(table.column("position")) if has_position else None
    if positions is not None and pa.types.is_binary(positions.type):  # of rows that a map made
        positions = positions.cast(pa.binary(24))
    if positions is not None and positions.type == pa.binary(24):
        filled = pc.fill_null(positions, b"\0" * 24)
        data = np.frombuffer(filled.buffers()[1], np.uint8)[filled.offset * 24 :][: count * 24]
        words[:, 3:0:-1] = data.reshape(count, 24).view(">u8")
    offsets = [part.offsets for part in insert.parts]
    if all(each is not None for each in offsets):
        words[:, 0] = np.concatenate([each for each in offsets if each is not None])
    elif positions is None or positions.null_count:
        raise StrategyError(
            "ClickHouseWriter(changes=True): the rows have neither a position nor an offset, because a "
            "reducer made them: nothing orders them. Write the rows of the map"
        )
    return words


def _column(words: NDArray[np.uint64]) -> pa.Array[Any]:
    data: Any = np.ascontiguousarray(words.astype("<u8"))
    made: pa.Array[Any] = pa.Array.from_buffers(
        pa.binary(32), len(words), [None, pa.py_buffer(data)]
    )
    return made


def _complete(rows: pa.Table, applied: Applied, table: ClickHouseTable) -> NDArray[np.bool_]:
    """Return which rows are deleted or have every value that the table needs; the others are refused."""
    kept = np.ones(rows.num_rows, np.bool_)
    for column in table.columns:
        if not column.is_needed or column.name in (VERSION, DELETED):
            continue
        lacking = ~applied.deleted
        if column.name in rows.column_names:
            null = whole(rows.column(column.name)).is_null()
            lacking &= null.to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(lacking).tolist():
            reason = f"column {column.name} ({column.type_name}) cannot be null"
            applied.refused.setdefault(int(applied.source[row]), reason)
        kept &= ~lacking
    return kept
