"""Read the result of a query from ClickHouse or PostgreSQL, in the calling thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from .._extras import require_extra
from ..errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Iterator

POSTGRES_URL: Final = "KMR_POSTGRES_URL"
CLICKHOUSE_URL: Final = "KMR_CLICKHOUSE_URL"

_SECONDS: Final = 300  # a query may take
_CONNECT: Final = 10  # seconds
_PIECE: Final = 50_000  # rows

# Types of PostgreSQL, by their numbers in its catalog: those of other values are found from the values.
_KINDS: Final = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    25: pa.string(),
    700: pa.float32(),
    701: pa.float64(),
    1042: pa.string(),
    1043: pa.string(),
    114: pa.string(),
    1082: pa.date32(),
    1083: pa.time64("us"),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
    2950: pa.string(),
    3802: pa.string(),
}
_UUID: Final = 2950
_INTERVAL: Final = 1186


class Database(ABC):
    """Where queries are sent to. Its text names it without user and password."""

    @abstractmethod
    def read(self, sql: str, max_bytes: int) -> pa.Table:
        """Return the rows of a query.

        Raises:
            SinkUnavailable: the database does not answer.
            SinkError: it refuses the query.
            StrategyError: the rows are more than so many bytes.
        """


def database_of(url: str) -> Database:
    """Return the database of a URL, as the writers take it. Raises StrategyError."""
    scheme = url.partition(":")[0]
    if scheme in ("http", "https", "chdb"):
        return _ClickHouse(url)
    if scheme in ("postgresql", "postgres"):
        return _Postgres(url)
    raise StrategyError(
        f"Lookup.query: url= is postgresql://user@host/database, http://host:8123 or chdb:///directory, "
        f"not one of the scheme {scheme!r}"
    )


class _ClickHouse(Database):
    def __init__(self, url: str) -> None:
        from ..sinks.clickhouse.client import ClickHouseAddress

        self._target = ClickHouseAddress.of(url)

    def __str__(self) -> str:
        return str(self._target)

    def read(self, sql: str, max_bytes: int) -> pa.Table:
        from ..sinks.clickhouse.client import connect

        with connect(self._target, timeout=_SECONDS) as client:
            described = client.query(f"DESCRIBE TABLE (\n{sql}\n)").named_results()
            kinds = {row["name"]: row["type"] for row in described}
            rows = client.query_arrow(sql, use_strings=True)
        _limit(rows.nbytes, max_bytes)
        return pa.table(
            {name: _plain(rows.column(name), kinds.get(name, "")) for name in rows.column_names}
        )


def _plain(column: Any, kind: str) -> Any:
    """Return dates and times as such: ClickHouse sends some of them as plain numbers."""
    kind = kind.removeprefix("Nullable(")
    if kind.startswith("DateTime") and pa.types.is_integer(column.type):
        return column.cast(pa.int64()).cast(pa.timestamp("s", "UTC"))
    if kind.startswith("Date") and pa.types.is_integer(column.type):
        return column.cast(pa.int32()).cast(pa.date32())
    return column


class _Postgres(Database):
    def __init__(self, url: str) -> None:
        require_extra("postgres", "Lookup.query of PostgreSQL")
        from ..sinks.postgres.connection import Pool

        self._pool = Pool.of(url, _SECONDS)

    def __str__(self) -> str:
        return str(self._pool)

    def read(self, sql: str, max_bytes: int) -> pa.Table:
        import psycopg
        from psycopg.types.json import set_json_loads

        from ..sinks.answers import of_postgres, sink_error

        try:
            with psycopg.connect(
                self._pool.conninfo, connect_timeout=_CONNECT, prepare_threshold=None
            ) as connection:
                set_json_loads(_text, connection)
                connection.execute("SET TRANSACTION READ ONLY")
                connection.execute(f"SET LOCAL statement_timeout = '{_SECONDS}s'")
                with connection.cursor("kmr_lookup", binary=True) as cursor:
                    cursor.execute(sql.encode())
                    pieces = list(self._pieces(cursor, max_bytes))
            return pa.concat_tables(pieces, promote_options="permissive")
        except (psycopg.Error, OSError) as error:
            raise sink_error(str(self), of_postgres(error)) from error

    def _pieces(self, cursor: Any, max_bytes: int) -> Iterator[pa.Table]:
        names = [column.name for column in cursor.description]
        types = [column.type_code for column in cursor.description]
        if _INTERVAL in types:
            raise StrategyError(
                f"{self}: column {names[types.index(_INTERVAL)]} is an interval, whose months have no "
                "fixed length; take its text (::text), or its seconds"
            )
        size = 0
        while rows := cursor.fetchmany(_PIECE):
            values: Iterator[Any] = zip(*rows, strict=True)
            columns = [_array(*each) for each in zip(values, types, strict=True)]
            piece = pa.Table.from_arrays(columns, names=names)
            size += piece.nbytes
            _limit(size, max_bytes)
            yield piece
        if not size:
            yield pa.Table.from_arrays(
                [pa.array([], _KINDS.get(each, pa.null())) for each in types], names=names
            )


def _array(values: Any, type_code: int) -> Any:
    if type_code == _UUID:
        values = [None if each is None else str(each) for each in values]
    return pa.array(values, _KINDS.get(type_code))


def _text(data: Any) -> str:
    """Keep JSON as its text: as columns, its objects would all get the same keys."""
    return data if isinstance(data, str) else bytes(data).decode()


def _limit(size: int, most: int) -> None:
    if size > most:
        raise StrategyError(
            f"the result of the query has {size:,} bytes, more than max_bytes={most:,}; raise it, or select "
            "less"
        )
