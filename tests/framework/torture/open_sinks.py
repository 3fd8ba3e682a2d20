"""Writers that stay open for many examples: each writes one column of a table, and reads it back."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import clickhouse_connect
import numpy as np
import psycopg
import pyarrow as pa
from anyio.from_thread import start_blocking_portal

from kmr.columns.fitting import known_to_kernels
from kmr.delivery.announcement import Announcement
from kmr.record import Range, Rows
from kmr.reducers.reducer import Context, Retry
from kmr.reducers.sink import Write
from kmr.sinks import ClickHouseWriter, PostgresWriter

from ..flushes import outcome
from .plain_values import plain, read_json
from .readers import EXACT, is_held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from anyio.from_thread import BlockingPortal

    from kmr.sinks.ranges import RangeWriter

TABLE = "narrow"


class NarrowTable:
    """A table with a column of each type, and a writer to it.

    Args:
        writer: open; its table has the columns `id` and `c0`, `c1`, ... of these types.
        read: returns the rows from an id on, of a column.
    """

    def __init__(
        self,
        portal: BlockingPortal,
        writer: RangeWriter,
        types: Sequence[str],
        read: Callable[[str, int], list[tuple[int, Any]]],
    ) -> None:
        self._portal, self._writer, self.types, self._read = portal, writer, types, read
        self._first = count(1_000, 1_000)

    def wrong(self, array: pa.Array[Any], target: int) -> list[str]:
        """Write a column into that of a type; return what must not have happened.

        Each row is there as it was sent, or refused with a reason that names the column.
        """
        first, name, kind = next(self._first), f"c{target}", self.types[target]
        table = known_to_kernels(
            pa.table({"id": np.arange(first, first + len(array)), name: array})
        )
        refused = self._portal.call(self._write, first, table)
        if isinstance(refused, Retry):
            return [f"the flush is repeated: {refused.reason}"]
        found: dict[int, list[Any]] = {}
        for row, value in self._read(name, first):
            found.setdefault(row - first, []).append(value)
        wrong = []
        for n, expected in enumerate(plain(array)):
            written, reason = found.get(n, []), refused.get(n)
            if (len(written) == 1) == (reason is not None) or len(written) > 1:
                wrong.append(
                    f"row {n} {expected!r} was written {len(written)} times, refused: {reason}"
                )
            elif reason is not None:
                if name not in reason:
                    wrong.append(f"row {n}: the reason does not name the column: {reason}")
                elif expected is None:
                    wrong.append(f"row {n}: null is refused: {reason}")
            elif not is_held(expected, written[0], kind):
                wrong.append(f"row {n} is {written[0]!r}, not {expected!r}")
        return [f"{array.type} into {kind}: {each}" for each in wrong]

    async def _write(self, first: int, table: pa.Table) -> dict[int, str] | Retry:
        writer, last = self._writer, first + table.num_rows - 1
        writer.reset()
        offsets = np.arange(first, last + 1)
        writer.add(Rows(table, (Range("t", 0, first, last),), offsets))
        token = f"g:t:0:{first}-{last}"
        found = await outcome(writer, Write(Announcement(first, last, token, "w")))
        if isinstance(found, Retry):
            return found
        refused: dict[int, str] = {}
        for each in found.refusals:
            assert each.rows.offsets is not None
            numbers = (each.rows.offsets - first).tolist()
            reasons = [each.reason] * len(numbers) if isinstance(each.reason, str) else each.reason
            refused |= dict(zip(numbers, reasons, strict=True))
        return refused


@contextmanager
def _opened(writer: RangeWriter) -> Iterator[tuple[BlockingPortal, RangeWriter]]:
    writer = copy.deepcopy(writer)
    with start_blocking_portal() as portal:
        portal.call(writer.open, Context(group="g", stage="reduce-1"))
        try:
            yield portal, writer
        finally:
            portal.call(writer.close)


@contextmanager
def postgres_table(url: str, types: Sequence[str], *before: str) -> Iterator[NarrowTable]:
    """A table of PostgreSQL.

    Args:
        before: statements that make the types.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in before:
            connection.execute(statement.encode())
        columns = "".join(f', "c{at}" {kind}' for at, kind in enumerate(types))
        connection.execute(f"CREATE TABLE {TABLE} (id bigint{columns})".encode())
        connection.execute("SET timezone = 'UTC'; SET intervalstyle = 'iso_8601'")

        def read(name: str, first: int) -> list[tuple[int, Any]]:
            query = f'SELECT id, "{name}"::text FROM {TABLE} WHERE id >= {first}'
            return connection.execute(query.encode()).fetchall()

        with _opened(PostgresWriter(TABLE, url=url)) as (portal, writer):
            yield NarrowTable(portal, writer, types, read)


@contextmanager
def clickhouse_table(url: str, types: Sequence[str]) -> Iterator[NarrowTable]:
    """A table of ClickHouse."""
    with clickhouse_connect.get_client(dsn=url, autogenerate_session_id=False) as client:
        columns = "".join(f", c{at} {_with_default(kind)}" for at, kind in enumerate(types))
        client.command(f"DROP TABLE IF EXISTS {TABLE}")
        client.command(
            f"CREATE TABLE {TABLE} (id Int64{columns}) ENGINE = MergeTree ORDER BY id "
            "SETTINGS non_replicated_deduplication_window = 10000",
            settings=_NEW_TYPES,
        )

        def read(name: str, first: int) -> list[tuple[int, Any]]:
            raw = client.raw_query(
                f"SELECT id, {name} FROM {TABLE} WHERE id >= {first} FORMAT JSONCompactEachRow",
                settings=EXACT,
            )
            rows = [read_json(line) for line in raw.decode("latin-1").split("\n") if line]
            return [(int(row[0]), row[1]) for row in rows]

        with _opened(ClickHouseWriter(TABLE, url=url)) as (portal, writer):
            yield NarrowTable(portal, writer, types, read)
        client.command(f"DROP TABLE {TABLE}")


def _with_default(kind: str) -> str:
    """Nested columns of ClickHouse cannot be null: null is their default."""
    if kind.startswith(("Array", "Map", "Nested")):
        return (
            f"{kind} DEFAULT CAST([] AS {kind})"
            if kind.startswith(("Array", "Nested"))
            else f"{kind} DEFAULT map()"
        )
    if kind.startswith("Tuple"):
        return f"{kind} DEFAULT (NULL, NULL)"
    return "JSON DEFAULT '{}'" if kind == "JSON" else kind


_NEW_TYPES = {
    "allow_suspicious_low_cardinality_types": 1,
    "allow_suspicious_variant_types": 1,
    "enable_time_time64_type": 1,
    "allow_experimental_variant_type": 1,
    "allow_experimental_dynamic_type": 1,
    "enable_json_type": 1,
    "allow_experimental_bfloat16_type": 1,
    "flatten_nested": 0,
}
