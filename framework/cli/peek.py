"""`kmr peek`: what the records of a topic are, and what a map makes of them."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
import pyarrow as pa
from cyclopts import Parameter
from pyarrow import feather

from .._extras import require_extra
from ..columns.column_types import join_tables
from ..config.flags import Given, settings_flags
from ..config.schema import show_count
from ..errors import KmrError, SettingsError
from ..kafka.connection import connection_config
from ..kafka.reading import RecordSelection
from ..loading import load_strategy
from ..peeking import MappedRecords
from ..peeking import peek as peek_at
from ..reducers.collect import Collect
from ..settings import CLUSTER, ClusterSettings
from ..strategy import Strategy
from ..tagged_rows import rows_by_branch
from .offsets import milliseconds
from .output import plain_console, plain_table, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ..record import Record

_WIDEST = 48  # characters of a value
_TABLE = "CREATE TABLE t ENGINE = Memory AS SELECT * FROM file('{file}', Arrow)"


@settings_flags(CLUSTER)
def peek(
    subject: str,
    /,
    *,
    given: Given[ClusterSettings],
    topic: str | None = None,
    last: int = 20,
    since: Annotated[str | None, Parameter("--from")] = None,
    follow: Annotated[bool, Parameter(negative=())] = False,
    registry: str | None = None,
    sql: str | None = None,
) -> int:
    """Show what a strategy's map makes of real records: rows, what is filtered, and what fails and why.

    It commits nothing, joins no group and writes nowhere. With the name of a topic instead of a strategy it
    shows the records, decoded as far as they are JSON or text, or Avro of a registry. The exit code is 1 if
    a record failed.

    For example:

        kmr peek hits:strategy --topic hits
        kmr peek hits --sql "SELECT status, count() FROM t GROUP BY status"

    Parameters
    ----------
    subject
        The strategy, module:attribute, with --topic; or a topic.
    topic
        Topic whose records the strategy maps.
    last
        The newest records, so many of all partitions.
    since
        All records from this time on instead: 2026-11-01T10:00, or 0 for all that the topic has.
    follow
        Go on with new records until Ctrl-C.
    registry
        URL of a schema registry; values are Avro then.
    sql
        Ask ClickHouse as a library about the rows, which are the table t.
    """
    if topic is None and ":" in subject:
        raise SettingsError(f"{subject} is a strategy: name the topic that it maps with --topic")
    if last < 1:
        raise SettingsError(f"--last must be at least 1, not {last}")
    if sql is not None:
        if follow:
            raise SettingsError("--sql needs an end: leave out --follow")
        require_extra("embedded", "--sql")
    strategy = _any_value(registry, subject) if topic is None else load_strategy(subject)
    tables = _tables if topic or registry else _topic_tables
    config = connection_config(given.load())
    start = None if since is None else 0 if since == "0" else milliseconds(since, "--from")
    window = RecordSelection(None if since is not None else last, start, follow)
    console = plain_console()

    async def look() -> list[MappedRecords]:
        seen = []
        async for mapped in peek_at(config, strategy, topic or subject, window):
            seen.append(mapped)
            if follow:
                _print([mapped], tables([mapped]), console)
                seen.clear()
        return seen

    seen = anyio.run(look)
    if sql is not None:
        print(_ask(sql, tables(seen)), end="")  # noqa: T201  the answer
    else:
        _print(seen, tables(seen), console)
    return 1 if any(each.result.failures for each in seen) else 0


def _any_value(registry: str | None, topic: str) -> Strategy:
    """Return a strategy that makes a row of each value: Avro of a registry, else key and value as text."""
    if registry is not None:
        from ..values.avro.avro_format import Avro

        return Strategy(
            value=Avro(registry=registry, subject=f"{topic}-value"), reduce=Collect(_nothing)
        )
    return Strategy(map=_as_text, reduce=Collect(_nothing))


def _nothing(_: pa.Table) -> None:
    """No reducer is called."""


def _as_text(record: Record) -> dict[str, str | None]:
    return {
        name: None if data is None else data.decode("utf-8", "backslashreplace")
        for name, data in (("key", record.key), ("value", record.value))
    }


def _topic_tables(seen: Sequence[MappedRecords]) -> dict[str, pa.Table]:
    return {name: _fields_of_json(table) for name, table in _tables(seen).items()}


def _fields_of_json(table: pa.Table) -> pa.Table:
    """Return the fields of JSON objects in the place of the column `value`, which keeps other values."""
    rows = [_fields(value) for value in table["value"].to_pylist()]
    table = table.drop_columns(["value"])
    if table["key"].null_count == len(table):
        table = table.drop_columns(["key"])
    for name in dict.fromkeys(name for row in rows for name in row):
        taken = name in table.column_names
        column = _column([row.get(name) for row in rows])
        table = table.append_column(f"value.{name}" if taken else name, column)
    return table


def _fields(value: str | None) -> dict[str, Any]:
    with suppress(msgspec.MsgspecError, TypeError):
        fields = msgspec.json.decode(value or "")
        if isinstance(fields, dict) and fields:
            return fields
    return {"value": value}


def _column(values: list[Any]) -> pa.Array[Any]:
    """Return a column of values of one kind, or their JSON, because a record of a topic may be anything."""
    with suppress(pa.ArrowException, OverflowError, TypeError):
        column: pa.Array[Any] = pa.array(values)
        return column
    texts = [
        value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()
        for value in values
    ]
    return pa.array(texts, pa.string())


def _tables(seen: Sequence[MappedRecords]) -> dict[str, pa.Table]:
    """Return the rows by the names of their branches, with the place of each record."""
    found: dict[str, list[pa.Table]] = {}
    for batch, result, _ in seen:
        if result.table is None:
            continue
        for name, table, rows in rows_by_branch(result.table):
            place: dict[str, Any] = {
                "partition": pa.repeat(batch.partition, len(table)),
                "offset": pa.array(result.offsets[rows]),
            }
            for column in ("offset", "partition"):
                if column not in table.column_names:
                    table = table.add_column(0, column, place[column])
            found.setdefault(name, []).append(table)
    return {name: join_tables(tables).table for name, tables in found.items()}


def _print(seen: Sequence[MappedRecords], tables: dict[str, pa.Table], console: Console) -> None:
    rows = 0
    for name, table in tables.items():
        rows += len(table)
        if name:
            console.print(f"{visible(name)}:")
        shown = plain_table(*map(visible, table.column_names), left=tuple(table.column_names))
        for row in table.to_pylist():
            shown.add_row(*(_short(value) for value in row.values()))
        console.print(shown)
    for batch, result, _ in seen:
        for failure in result.failures:
            place = f"{batch.partition}:{failure.offset}"
            console.print(f"failed {place}: {visible(failure.reason)}", style="red")
    records = sum(len(batch) for batch, _, _ in seen)
    filtered = sum(result.filtered(len(batch)) for batch, result, _ in seen)
    failed = sum(len(result.failures) for _, result, _ in seen)
    each = 1e6 * sum(seconds for _, _, seconds in seen) / max(1, records)
    console.print(
        f"{show_count(records, 'record')}: {show_count(rows, 'row')}, {filtered:,} filtered, "
        f"{failed:,} failed; {each:,.1f} µs per record"
    )


def _short(value: object) -> str:
    text = visible(value.isoformat(" ") if hasattr(value, "isoformat") else str(value))
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _ask(sql: str, tables: dict[str, pa.Table]) -> str:
    """Ask ClickHouse as a library about the rows, which are the table `t`."""
    from chdb.state.sqlitelike import Connection

    if not tables:
        raise KmrError("there are no rows to ask about")
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "t.arrow"
        rows = join_tables(list(tables.values())).table
        rows = rows.cast(pa.schema([field.with_type(_typed(field.type)) for field in rows.schema]))
        feather.write_feather(rows, str(file), compression="uncompressed")
        connection = Connection(f"{directory}/clickhouse")
        try:
            connection.query(_TABLE.format(file=file))
            return str(connection.query(sql, "PrettyCompact"))
        except RuntimeError as error:
            columns = ", ".join(rows.column_names)
            raise KmrError(
                f"--sql: {error}; the rows are the table t, of the columns {columns}"
            ) from error
        finally:
            connection.close()


def _typed(kind: pa.DataType) -> pa.DataType:
    """Return a type with text in the place of Arrow's type of nothing but nulls, which ClickHouse lacks."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_typed(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_typed(field.type)) for field in kind.fields])
    return kind
