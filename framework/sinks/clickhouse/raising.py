"""Find the rows for which an expression of a table raises: a DEFAULT, MATERIALIZED, of a key or an index.

An exception ends a query and names no row. So the expressions are tried on rows that are not written: on
many while they succeed, on fewer where one raises. Each row that is refused was tried alone, and what is left
is one INSERT; divided, the good rows would make a part each.

An exception takes the server milliseconds, so thousands of bad rows are found without any: where an
expression casts a text column, throws by a condition, or divides by a column, one query says for which rows
it raises. A sample that is tried row by row confirms it.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import anyio
import numpy as np
from clickhouse_connect.driver.binding import quote_identifier

from ...service.threads import run_in_thread
from ..answers import Answer, of_clickhouse
from .ddl import quote_text
from .violations import ROW, SOURCE_SETTINGS, rows_as_source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from .client import ClickHouseConnection
    from .table import ClickHouseColumn, ClickHouseTable

_SAMPLE: Final = 64  # rows, evenly spaced: how many are bad
_MOST_BAD: Final = 3_000  # rows that are tried alone; more would take longer than a flush may
_AT_A_TIME: Final = 4_096  # rows
_AT_ONCE: Final = 4  # queries
_NAME: Final = r"(`(?:[^`\\]|\\.)+`|[A-Za-z_]\w*)"
_TEXT: Final = r"'((?:[^'\\]|\\.)*)'"
_CASTS: Final = re.compile(
    rf"\bCAST\({_NAME}, {_TEXT}\)|\bto((?:U?Int|Float)\d+|Date|Date32|DateTime|UUID|IPv4|IPv6)\({_NAME}\)"
)
_ARGUMENT: Final = r"((?:[^'(),]|\([^'()]*\))+)"
_THROWS: Final = re.compile(rf"\bthrowIf\({_ARGUMENT}[,)]")
_DIVIDES: Final = re.compile(rf"\b(?:intDiv|modulo)\({_ARGUMENT}, {_NAME}\)")
# The server may not evaluate all parts of these for each row.
_CONDITIONAL: Final = re.compile(
    r"->|\?|\b(if|multiIf|and|or|case\w*|coalesce|ifNull|transform|AND|OR|CASE)\b"
)
# A Variant reads texts of these types in another way than a cast does.
_NOT_PARSED: Final = re.compile(
    "^Nullable|Bool|String|Enum|JSON|Variant|Dynamic|LowCardinality|Nested"
)
_GUARD_SETTINGS: Final = {
    "allow_experimental_variant_type": 1,
    "allow_suspicious_variant_types": 1,
    "cast_string_to_variant_use_inference": 1,
}
_EXPRESSIONS: Final = """
SELECT name, default_expression AS expression FROM system.columns
WHERE database = {database:String} AND table = {table:String}
AND default_kind IN ('DEFAULT', 'MATERIALIZED') ORDER BY position"""
_KEYS: Final = """
SELECT '_kmr_partition' AS name, partition_key AS expression FROM system.tables AS t
WHERE t.database = {database:String} AND t.name = {table:String} AND expression != ''
UNION ALL SELECT '_kmr_sorting', replaceRegexpAll(sorting_key, ' (DESC|ASC)\\\\b', '') AS expression
FROM system.tables WHERE database = {database:String} AND name = {table:String} AND expression != ''
UNION ALL SELECT concat('_kmr_', name), expr FROM system.data_skipping_indices
WHERE database = {database:String} AND table = {table:String}"""


async def raising(
    connection: ClickHouseConnection,
    table: ClickHouseTable,
    columns: Sequence[ClickHouseColumn],
    rows: pa.Table,
) -> dict[int, Answer]:
    """Return the rows for which an expression raises, with the server's answer.

    No row is returned if the table has no expressions, if they raise for all rows of a sample, or if more
    than 3,000 rows would have to be tried alone.

    Args:
        columns: those of the table that are sent.
        rows: cast for them.

    Raises:
        Exception: the client's own, if the server does not answer now.
    """
    sent = [each for each in columns if each.name in rows.column_names]
    names = {each.name for each in sent}
    where = {"database": table.database, "table": table.name}
    found = list(await connection.rows(_EXPRESSIONS, where))
    try:
        found += await connection.rows(_KEYS, where)
    except Exception as error:
        if of_clickhouse(error).kind == "later":
            raise  # else the user may not read a table of the server's
    expressions = {each["name"]: each["expression"] for each in found if each["name"] not in names}
    if not expressions or not rows.num_rows:
        return {}
    text = ", ".join(f"({each}) AS {quote_identifier(name)}" for name, each in expressions.items())
    used = [each for each in sent if re.search(rf"(?<!\w){re.escape(each.name)}(?!\w)", text)]
    search = _Search(connection, used, rows.select([each.name for each in used]), text)
    sample = np.unique(np.linspace(0, rows.num_rows - 1, _SAMPLE).astype(np.int64)).tolist()
    await search.sample(sample)
    if len(search.bad) == len(sample):  # the set-up may be wrong
        return {}
    most = _MOST_BAD * len(sample) / rows.num_rows  # of the sample
    if len(search.bad) > most:
        await search.guard(expressions.values(), sample)
        if len([row for row in sample if row in search.bad and row not in search.guarded]) > most:
            return {}
    await search.run()
    return search.bad


class _Search:
    """Tries expressions on rows.

    Attributes:
        bad: the rows for which they raise.
        guarded: those of them that were found without trying them.
    """

    def __init__(
        self,
        connection: ClickHouseConnection,
        columns: Sequence[ClickHouseColumn],
        rows: pa.Table,
        expressions: str,
    ) -> None:
        self._connection, self._columns, self._rows = connection, columns, rows
        self._expressions = expressions
        self._left = np.zeros(0, np.int64)
        self.bad: dict[int, Answer] = {}
        self.guarded: set[int] = set()

    async def sample(self, rows: Sequence[int]) -> None:
        """Try them on some rows."""
        for row in rows:
            if (answer := await self._try(np.array([row]))) is not None:
                self.bad[row] = answer

    async def guard(self, expressions: Iterable[str], sample: Sequence[int]) -> None:
        """Find rows by conditions on which the expressions raise, if they are right about the sample."""
        guarded: dict[int, Answer] = {}
        for expression in expressions:
            for condition in _conditions(expression, self._columns):
                reason = f"the expression {expression} of the table raises"
                message = f"while executing {condition}"
                answer = Answer("rows", reason, about_values=True, message=message)
                for row in await self._rows_where(condition):
                    guarded.setdefault(row, answer)
        if all(row in self.bad for row in sample if row in guarded):
            self.guarded = set(guarded)
            self.bad = guarded | self.bad

    async def _rows_where(self, condition: str) -> list[int]:
        """Return the rows on which a condition holds; none if the server does not evaluate it."""
        found: list[int] = []
        for start in range(0, len(self._rows), _AT_A_TIME):
            part = self._rows.slice(start, _AT_A_TIME)
            source = await run_in_thread(rows_as_source, self._columns, part)
            query = f"SELECT {ROW} FROM {source} WHERE {condition}"  # noqa: S608
            try:
                answer = await self._connection.rows(
                    query, {}, {**SOURCE_SETTINGS, **_GUARD_SETTINGS}
                )
            except Exception as error:
                if of_clickhouse(error).kind == "later":
                    raise
                return []
            found += [start + row[ROW] for row in answer]
        return found

    async def run(self) -> None:
        """Try them on the rows that are not known to be bad, in several stretches at once."""
        self._left = np.setdiff1d(np.arange(len(self._rows)), list(self.bad))
        ends = np.linspace(0, len(self._left), _AT_ONCE + 1).astype(int).tolist()
        async with anyio.create_task_group() as tasks:
            for start, stop in pairwise(ends):
                tasks.start_soon(self._stretch, start, stop)

    async def _stretch(self, at: int, stop: int) -> None:
        size = _AT_A_TIME
        while at < stop:
            count = min(size, stop - at)
            answer = await self._try(self._left[at : at + count])
            if answer is None:
                at += count
                size = min(2 * size, _AT_A_TIME)
            elif count == 1:
                self.bad[int(self._left[at])] = answer
                at += 1
            else:
                size = max(1, count // 4)

    async def _try(self, numbers: NDArray[np.int64]) -> Answer | None:
        """Return the server's answer if an expression raises for one of these rows."""
        part = self._rows.take(numbers)
        source = await run_in_thread(rows_as_source, self._columns, part)
        query = f"SELECT max(ignore({self._expressions})) FROM {source}"  # noqa: S608
        try:
            await self._connection.rows(query, {}, SOURCE_SETTINGS)
        except Exception as error:
            answer = of_clickhouse(error)
            if answer.kind not in ("rows", "schema"):
                raise
            return answer
        return None


def _conditions(expression: str, columns: Sequence[ClickHouseColumn]) -> Iterator[str]:
    """Yield conditions on which an expression raises; it may raise on others, too."""
    if _CONDITIONAL.search(expression):
        return
    kinds = {each.name: each.type_name for each in columns}
    for column, cast, of_function, argument in _CASTS.findall(expression):
        kind = cast.replace("\\'", "'") or of_function
        name = column or argument
        if kinds.get(_unquoted(name)) == "String" and not _NOT_PARSED.search(kind):
            variant = quote_text(f"Variant({kind}, String)")
            yield f"variantType(CAST({name}, {variant})) = 'String'"
    yield from _THROWS.findall(expression)
    for _, name in _DIVIDES.findall(expression):
        if "Int" in kinds.get(_unquoted(name), ""):
            yield f"{name} = 0"


def _unquoted(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name[1:-1]) if name.startswith("`") else name
