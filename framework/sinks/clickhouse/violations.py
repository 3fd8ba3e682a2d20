"""Find the rows that violate a constraint of a table: one query for thousands of them.

ClickHouse names the constraint, its expression and the first row only. The server then evaluates the
expression for all rows, so 30,000 of them are found as fast as one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from clickhouse_connect.driver.binding import quote_identifier

from ...columns.kinds import whole
from ...columns.texts import excerpt, python_values
from ...service.threads import run_in_thread
from .ddl import quote_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .client import ClickHouseConnection
    from .table import ClickHouseColumn

_VIOLATED: Final = re.compile(
    r"Constraint (?P<name>`.*?`) .*?is violated.*?Expression: (?P<expression>.*?)\. Column values",
    re.DOTALL,
)
ROW: Final = "_kmr_row"
_AT_A_TIME: Final = 16_384  # rows
SOURCE_SETTINGS: Final = {"max_query_size": 1 << 31, "max_ast_elements": 1_000_000}


async def violations(
    connection: ClickHouseConnection,
    columns: Sequence[ClickHouseColumn],
    rows: pa.Table,
    message: str,
) -> dict[int, str]:
    """Return the rows that violate the constraint of a message, with the reasons.

    No rows if the message names no constraint, or the server does not evaluate its expression.

    Args:
        columns: those of the table that are sent.
        rows: cast for them.
        message: the server's answer to an INSERT of the rows.
    """
    found = _VIOLATED.search(message)
    if found is None:
        return {}
    name, expression = found["name"], found["expression"]
    used = [
        column
        for column in columns
        if column.name in rows.column_names
        and re.search(rf"(?<!\w){re.escape(column.name)}(?!\w)", expression)
    ]
    bad: list[int] = []
    for start in range(0, rows.num_rows, _AT_A_TIME):
        part = rows.slice(start, _AT_A_TIME).select([each.name for each in used])
        source = await run_in_thread(rows_as_source, used, part)
        query = f"SELECT {ROW} FROM {source} WHERE NOT ({expression})"  # noqa: S608
        try:
            answer = await connection.rows(query, {}, SOURCE_SETTINGS)
        except Exception:  # noqa: BLE001  bisecting finds them, too
            return {}
        bad += [start + row[ROW] for row in answer]
    shown = _shown(rows.select([each.name for each in used]).take(bad))
    return {
        row: f"constraint {name} {expression}: {values}"
        for row, values in zip(bad, shown, strict=True)
    }


def rows_as_source(columns: Sequence[ClickHouseColumn], part: pa.Table) -> str:
    """Return SQL of a table with these columns of some rows, and their numbers as `_kmr_row`."""
    structure = "".join(f"{quote_identifier(each.name)} {each.type_name}, " for each in columns)
    numbers = pa.array(range(part.num_rows), pa.uint32())
    part = part.select([each.name for each in columns]).append_column(ROW, numbers)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, part.schema) as stream:
        stream.write_table(part.combine_chunks())
    data = sink.getvalue().to_pybytes().hex()
    return f"format(ArrowStream, {quote_text(f'{structure}{ROW} UInt32')}, unhex('{data}'))"


def _shown(rows: pa.Table) -> list[str]:
    """Return the values of each row: `id = 2, amount = -1`."""
    columns = [
        [f"{name} = {excerpt(value)}" for value in python_values(whole(column))]
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    ]
    return [", ".join(cells) for cells in zip(*columns, strict=True)]
