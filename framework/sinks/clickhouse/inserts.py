"""Write the inserts of a flush with deduplication tokens; count rows where a token proves nothing.

- A server without replication that dies between storing a token and writing the part remembers an insert
  whose rows it does not have: `repeat` writes them again with another token.
- A table forgets tokens, by number, and a replicated one by time: `was_counted` counts before a range is
  written that may be there.
- A range that was announced with others is written under their token (`RangeRows.shared`). Another of them
  may have taken it alone: then the rows are missing, and `repeat` writes them under the range's own.
- The answer of a server does not tell whether it wrote the rows or dropped them as a repetition
  (`written_rows` counts both): `fingerprint` differs if rows were written in between.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog

from ...columns.column_types import choose_type
from ...columns.kinds import has_values, whole
from ...columns.reasons import count_values
from ...errors import KmrError, SinkError, StrategyError
from ...record import OFFSET_COLUMNS, PLACED, with_coordinates
from ...reducers.reducer import Retry
from ...service.threads import run_in_thread
from ..answers import Answer, of_clickhouse
from ..choosing import choose
from ..parquet.columns import stored_type
from ..planning import Section
from .ddl import add_columns
from .fences import is_exchanged, is_refused
from .raising import raising
from .refusals import Refusals, unconvertible
from .table import SchemaMismatch, read_table
from .types import fields_left_out
from .violations import violations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ...record import Rows
    from ..answers import SetUp
    from ..choosing import ExtraColumns
    from ..planning import RangeRows
    from ..ranges import LeavingOut
    from .client import ClickHouseConnection
    from .ddl import TableLayout
    from .table import Block, ClickHouseColumn, ClickHouseTable, Compression

_SETTINGS: Mapping[str, int | str] = {
    "async_insert": 0,  # the server answers when the rows are in the table, not before
}
_NO_MEMORY: Mapping[str, int] = {"insert_deduplicate": 0}
_ALTER_SETTINGS: Mapping[str, int] = {"alter_sync": 2}  # wait for all replicas
_VERIFICATIONS = 5
_SMALL_ROWS = 64
_MOST_REFUSED = 200  # small sections; more are divided only while they save more rows than that
_RANGES_AT_A_TIME = 200  # they are in the URL of the query
_AMONG_SQL = """
SELECT DISTINCT `partition` FROM {table} WHERE `topic` = {{topic:String}}
AND `partition` IN {{partitions:Array(Int64)}}
AND `offset` BETWEEN arrayMin({{firsts:Array(Int64)}}) AND arrayMax({{lasts:Array(Int64)}})
AND `offset` >= transform(toInt64(`partition`), {{partitions:Array(Int64)}}, {{firsts:Array(Int64)}}, 0)
AND `offset` <= transform(toInt64(`partition`), {{partitions:Array(Int64)}}, {{lasts:Array(Int64)}}, -1)"""
_PARTS_SQL = """
SELECT sum(newest) AS found FROM (
    SELECT max(max_block_number) AS newest FROM system.parts
    WHERE database = {database:String} AND table = {table:String} AND active GROUP BY partition_id)"""

_log = structlog.get_logger(__name__)


class _SectionOutcome(Enum):
    """The outcome of a section; where its rows are refused it is the answer instead."""

    WRITTEN = 1
    DIVIDED = 2


@dataclass(slots=True)
class _Division:
    """The sections of an insert that are not sent yet, and whether a refused one is divided.

    What decides is counted, not timed, so that a repeated range is divided alike.

    Attributes:
        todo: large ones in order of size, because they have most good rows; then the small ones, each to its
            end.
        small: the most rows of a small one.
        is_begun: a section was divided or refused.
    """

    todo: deque[Section]
    small: int
    is_begun: bool = False
    _refusals: int = 0
    _written: int = 0

    def divides(self, section: Section) -> bool:
        """Return whether a refused section is divided: small ones only while that saves many rows."""
        size = section.stop - section.start
        pays = size > self.small or self._refusals < max(_MOST_REFUSED, self._written)
        return size > 1 and pays

    def note(self, section: Section, outcome: _SectionOutcome | Answer) -> None:
        """Count the outcome of a section; its halves are next if it is divided."""
        size = section.stop - section.start
        self.is_begun |= outcome is not _SectionOutcome.WRITTEN
        if size <= self.small:
            self._refusals += outcome is not _SectionOutcome.WRITTEN
            self._written += size * (outcome is _SectionOutcome.WRITTEN)
        if outcome is _SectionOutcome.DIVIDED:
            add = self.todo.extend if size > self.small else self.todo.extendleft
            add(section.halves())


@dataclass(slots=True)
class Inserter:
    """Writes inserts into one table.

    Remembers the outcome of each section, so that a retry continues where the last attempt ended; call
    `forget` when all inserts of a flush are delivered.

    Attributes:
        deduplicates: the table recognises a repeated insert.
        deduplication: the settings that turn deduplication on, also where a profile or the URL turns it off.
        takes_letters: the rows are failed records, which must all be accepted.
        require_taken: raises if no `reduce_err` takes the rows of an insert that are refused.
        are_changes: a null becomes the default of its column's type: it is of a deleted row.
        had: the columns that the table has had.
        evolve: columns that the table lacks are added to it, and rows that do not fit it are refused one
            by one; None: neither, both are errors.
    """

    connection: ClickHouseConnection
    group: str
    table: ClickHouseTable
    columns: Sequence[str] | None
    extra_columns: ExtraColumns
    compression: Compression
    deduplicates: bool
    set_up: SetUp
    leaving_out: LeavingOut
    evolve: TableLayout | None = None
    deduplication: Mapping[str, str] = field(default_factory=dict)
    had: frozenset[str] = frozenset()
    takes_letters: bool = False
    are_changes: bool = False
    require_taken: Callable[[RangeRows, Mapping[int, str]], None] = lambda _insert, _refused: None
    _outcomes: dict[str, _SectionOutcome | Answer] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)

    async def write(self, insert: RangeRows) -> Mapping[int, str]:
        """Write an insert; return the numbers of rows that the table cannot store, with the reasons.

        Raises:
            Retry: the server will accept the rows later.
            StrategyError: rows and table do not fit, or the server refuses permanently.
            Exception: the client's own, when `of_clickhouse` does not know it.
        """
        try:
            try:
                return await self._attempt(insert)
            except SchemaMismatch:
                await self._reread()
            return await self._attempt(insert, last=True)
        except (KmrError, Retry):
            raise
        except Exception as error:
            self._raise(error)
            raise

    async def execute(self, statement: str) -> None:
        """Run an INSERT ... SELECT that may be repeated. Raises as `write`."""
        try:
            await self.connection.execute(statement, _NO_MEMORY)
        except Exception as error:
            self._raise(error)
            raise

    def _raise(self, error: Exception) -> None:
        """Raise what a server's answer means; return if it is not known."""
        answer = of_clickhouse(error)
        if answer.kind == "later":
            doubles = not (answer.not_begun or self.deduplicates)
            reason = f"{self.table}: {answer.reason}"
            raise Retry(reason, after=answer.after, may_double=doubles) from error
        if answer.kind != "unknown":
            raise StrategyError(f"{self.table} refuses the rows: {answer.reason}") from error

    def forget(self) -> None:
        """Forget the outcomes of all sections."""
        self._outcomes = {}

    async def refused(self, insert: RangeRows) -> dict[int, str]:
        """Return the row numbers that do not fit the table's columns, each with the reason."""
        return (await self._fit(insert))[0].refused

    async def _fit(self, insert: RangeRows) -> tuple[Block, ClickHouseTable]:
        """Cast the rows; read the table again if it refuses some: its definition may be outdated."""
        if self.evolve is not None:
            await self._add_columns([rows.table for rows in insert.parts], self.evolve)
        table = self.table
        block = await run_in_thread(self._cast, insert, table)
        if block.refused and await self._reread() != table:
            table = self.table
            block = await run_in_thread(self._cast, insert, table)
        return block, table

    async def _attempt(self, insert: RangeRows, *, last: bool = False) -> Mapping[int, str]:
        block, table = await self._fit(insert)
        refusals = Refusals(block, block.refused, set(block.fitted.general))
        self.require_taken(insert, block.refused)
        division = _Division(deque(insert.sections()), max(_SMALL_ROWS, len(insert) // 512))
        while division.todo:
            section = division.todo.popleft()
            outcome = self._outcomes.get(section.token)
            if outcome is None:
                outcome = await self._send(section, block, table, last=last)
                if isinstance(outcome, Answer):
                    if found := await self._found(section, block, outcome):
                        self.require_taken(insert, found)
                        refusals.add_found(found, outcome)
                        # With the same token: nothing was written under it.
                        division.todo.appendleft(section)
                        continue
                    if not division.is_begun and (
                        answers := await self._raising(section, block, table)
                    ):
                        reasons = {row: answer.reason for row, answer in answers.items()}
                        self.require_taken(insert, reasons)
                        for row, answer in answers.items():
                            refusals.add(Section(section.of, row, row + 1), answer)
                        division.todo.appendleft(section)
                        continue
                    if insert.joined and insert.shared:
                        reason = f"some rows of {len(insert.joined)} partitions: {outcome.reason}"
                        raise Retry(f"{table}: {reason}", after=0.0, may_double=False)  # each alone
                    rows = range(section.start, section.stop)
                    self.require_taken(insert, dict.fromkeys(rows, outcome.reason))
                    if division.divides(section):
                        outcome = _SectionOutcome.DIVIDED
                self._outcomes[section.token] = outcome
            division.note(section, outcome)
            if isinstance(outcome, Answer):
                refusals.add(section, outcome)
        self.set_up.judge(table, len(insert), refusals.reasons, refusals.general)
        self.leaving_out.of(table, block.fitted)
        return refusals.explained()

    def counts(self, parts: Sequence[Rows]) -> bool:
        """Return whether the table can tell how many rows of an insert it has."""
        filled = set(columns_to_count(self.table, self.columns))
        return bool(filled) and all(
            rows.offsets is not None
            and rows.places is None
            and (filled.isdisjoint(rows.table.column_names) or rows.table.schema.metadata == PLACED)
            for rows in parts
        )

    async def _found(self, section: Section, block: Block, answer: Answer) -> dict[int, str]:
        """Return the rows of a section that an answer is about, if they are found without dividing it."""
        numbers = [row for row in range(section.start, section.stop) if row not in block.refused]
        rows = block.table.take(numbers)
        found = unconvertible(block.columns, rows, answer) or await violations(
            self.connection, block.columns, rows, answer.message
        )
        return {numbers[row]: reason for row, reason in found.items()}

    async def _raising(
        self, section: Section, block: Block, table: ClickHouseTable
    ) -> dict[int, Answer]:
        """Return the rows of a section for which a DEFAULT raises."""
        numbers = [row for row in range(section.start, section.stop) if row not in block.refused]
        rows = block.table.take(numbers)
        found = await raising(self.connection, table, block.columns, rows)
        return {numbers[row]: answer for row, answer in found.items()}

    def _cast(self, insert: RangeRows, table: ClickHouseTable) -> Block:
        coordinates = table.coordinates(self.columns)
        parts = list(with_coordinates(insert.parts, coordinates))
        names = list(dict.fromkeys(name for part in parts for name in part.column_names))
        kinds = groupby((rows.table.schema, rows.table.schema.metadata) for rows in insert.parts)
        own = {name for (each, mark), _ in kinds if mark != PLACED for name in each.names}
        advice = advice_to_count(table, self.columns, own)
        if advice and advice not in self._warned:
            self._warned.add(advice)
            _log.warning("a repeated range is not counted", table=str(table), reason=advice)
        columns = table.columns
        if self.are_changes:
            columns = tuple(replace(each, has_default=True) for each in columns)
        choice = choose(table, columns, names, self.columns, self.extra_columns, had=self.had)
        if self.evolve is not None:  # a new column without a single value has no type yet
            typed = {each.name for part in parts for each in part.schema if has_values(each.type)}
            new = [name for name in choice.problems if name is not None and name not in typed]
            problems = {name: why for name, why in choice.problems.items() if name not in new}
            choice = replace(choice, left_out=[*choice.left_out, *new], problems=problems)
        block = table.cast(parts, choice, letters=self.takes_letters)
        left_out = Counter(block.fitted.left_out)
        for path, count in _fields_left_out(parts, choice.columns):
            left_out[path] += count
        return replace(block, fitted=block.fitted._replace(left_out=left_out))

    async def _add_columns(self, parts: Sequence[pa.Table], layout: TableLayout) -> None:
        """Add the columns that the table lacks. Another process may do the same at the same time."""
        if not _new_fields(parts, self.table, self.columns):
            return
        fields = _new_fields(parts, await self._reread(), self.columns)
        if not fields:
            return
        statement = add_columns(self.table.identifier, fields, layout)
        await self.connection.execute(statement, _ALTER_SETTINGS)
        _log.info("columns added to the table", table=str(self.table), statement=statement)
        await self._reread()

    async def _send(
        self, section: Section, block: Block, table: ClickHouseTable, *, last: bool
    ) -> _SectionOutcome | Answer:
        start, stop = section.start, section.stop
        body = await run_in_thread(block.encode, start, stop, self.compression)
        if body is None:
            return _SectionOutcome.WRITTEN
        # Where a column has a DEFAULT; else null is refused, and in Variant and Dynamic it stays null.
        null_as_default = int(any(each.has_default for each in block.columns))
        settings = {
            **_SETTINGS,
            "input_format_null_as_default": null_as_default,
            **self.deduplication,
            "insert_deduplication_token": section.token,
        }
        try:
            await self.connection.insert(table.identifier, block.table.column_names, body, settings)
        except Exception as error:
            answer = of_clickhouse(error)
            is_exchanged = is_refused(answer.message)
            if is_exchanged and last:
                raise Retry(f"{table} is another group's", may_double=False) from error
            if is_exchanged or (answer.kind == "schema" and not last):
                raise SchemaMismatch(answer.reason) from error
            if answer.kind in ("rows", "schema"):
                return answer
            raise
        return _SectionOutcome.WRITTEN

    async def _reread(self) -> ClickHouseTable:
        before = self.table
        self.table = await read_table(self.connection, before.database, before.name, self.group)
        self.had |= {column.name for column in self.table.columns}
        if (message := moved(before.name, self.table)) and message not in self._warned:
            self._warned.add(message)
            _log.warning(message)
        return self.table

    async def follow(self) -> bool:
        """Return whether another table has got the name of this one; then use the new name from now on."""
        table = self.table
        if not await is_exchanged(self.connection, table.database, table.name, self.group):
            return False
        await self._reread()
        return True


def moved(name: str, table: ClickHouseTable) -> str | None:
    """Say that a table has another name than the writer's; None if it has that one."""
    if table.name == name:
        return None
    return (
        f"kmr cutover has exchanged {table.database}.{name}: the table of this group is {table} now, and "
        f"gets its rows. Write ClickHouseWriter({str(table)!r}, ...) in the strategy before you drop the "
        "other one"
    )


def _fields_left_out(
    parts: Sequence[pa.Table], columns: Sequence[ClickHouseColumn]
) -> Iterator[tuple[str, int]]:
    """Yield the fields of nested objects that are not written: adding them would rewrite the column."""
    of_column = {column.name: column.type for column in columns}
    for part in parts:
        for each in part.schema:
            if each.name in of_column:
                for path in fields_left_out(each.type, of_column[each.name], each.name):
                    values = whole(part.column(each.name))
                    yield path, count_values(values, path.removeprefix(each.name))


def _new_fields(
    parts: Sequence[pa.Table], table: ClickHouseTable, only: Sequence[str] | None
) -> list[pa.Field[pa.DataType]]:
    """Return the columns of rows that a table lacks; of several types, the one that fits most values."""
    known = {column.name for column in table.columns}
    found: dict[str, dict[pa.DataType, pa.Field[pa.DataType]]] = {}
    values: Counter[tuple[str, pa.DataType]] = Counter()
    for part in parts:
        for each in part.schema:
            name, kind = each.name, each.type
            if name in known or (only is not None and name not in only) or not has_values(kind):
                continue
            found.setdefault(name, {}).setdefault(kind, each)
            column = part.column(name)
            values[name, kind] += len(column) - column.null_count
    new = []
    for name, kinds in found.items():
        chosen = choose_type({kind: values[name, kind] for kind in kinds}).type
        new.append(kinds.get(chosen, pa.field(name, chosen)).with_type(stored_type(chosen)))
    return new


async def was_counted(inserter: Inserter, insert: RangeRows) -> bool:
    """Count the rows of an insert that may have been written: a table forgets tokens, by time or by number.

    No other writer may write these offsets in other ranges: the rows found are those of this insert. After
    a reset of the offsets the table may have rows of an earlier generation: then the token decides.
    """
    if not inserter.counts(insert.parts) or _is_reset(insert):
        return False
    found = await _count(inserter, insert)
    if not found or not inserter.table.counting.missing:
        return found > 0  # the others have expired, or are merged
    return found >= len(insert) - len(await inserter.refused(insert))


async def found_among(inserter: Inserter, ranges: Sequence[RangeRows]) -> list[RangeRows]:
    """Return those of the ranges, each of one partition, that have rows in the table. Raises as `_ask`."""
    found: list[RangeRows] = []
    for topic in {rows.span.topic for rows in ranges if rows.span is not None}:
        spans = {
            rows.span.partition: rows for rows in ranges if rows.span and rows.span.topic == topic
        }
        parameters = {
            "topic": topic,
            "partitions": list(spans),
            "firsts": [rows.ranges[0].first for rows in spans.values()],
            "lasts": [rows.ranges[-1].last for rows in spans.values()],
        }
        sql = _AMONG_SQL.format(table=inserter.table.identifier)
        found += [spans[row["partition"]] for row in await _query(inserter, sql, parameters)]
    return found


def _is_reset(insert: RangeRows) -> bool:
    return insert.span is not None and insert.span.generation > 0


async def repeat(inserter: Inserter, insert: RangeRows, *, alone: bool) -> Mapping[int, str]:
    """Write an insert that may have been written before; count where the table has the columns to do so.

    Args:
        alone: no other writer writes these offsets in other ranges, so the rows found are those of this
            insert. Else they may be another writer's, and all are written again: at least once.

    Returns:
        As `Inserter.write`.

    Raises:
        SinkError: the rows cannot be counted, or the server accepts them again and again, but the table
            does not have them.
    """
    result = await inserter.write(insert)
    table = inserter.table
    counts = table.counting.missing and inserter.counts(insert.parts)
    if insert.shared or (counts and not table.is_replicated):
        await _verify(inserter, insert, result, alone=alone)
    return result


async def fingerprint(inserter: Inserter, insert: RangeRows) -> int | None:
    """Return a number that an insert changes, unless the server drops its rows as a repetition.

    The number of rows with its offsets, where a count proves it. Else the newest block of the table: there,
    another writer's insert can hide that ours was dropped. None where no insert shows (`Counting`).

    Raises:
        SinkError: the server refuses the query.
    """
    table = inserter.table
    if not table.counting.shows_inserts:
        return None
    if inserter.counts(insert.parts) and table.counting.missing:
        return await _count(inserter, insert)
    return await _ask(inserter, _PARTS_SQL, {"database": table.database, "table": table.name})


async def _verify(
    inserter: Inserter, insert: RangeRows, refused: Mapping[int, str], *, alone: bool
) -> None:
    """Count the rows of a repeated insert, and write them again if they are missing."""
    expected = len(insert) - len(refused)
    if expected == 0:
        return
    token = insert.token
    for attempt in range(1, _VERIFICATIONS + 1):
        found = await _count(inserter, insert)
        if found >= expected or (found and alone):
            if found != expected and alone and not _is_reset(insert):
                _log.warning(
                    "a range that was written before has another number of rows than now: the map must "
                    "return the same rows for the same records, and a compacted topic has fewer of them",
                    table=str(inserter.table),
                    token=token,
                    found=found,
                    expected=expected,
                )
            return
        if not insert.shared:  # else another partition's rows have taken the token
            _log.warning("rows of a repeated insert are missing: writing them again", token=token)
        await inserter.write(replace(insert, token=f"{token}/again-{attempt}", shared=""))
    raise SinkError(
        f"{inserter.table} accepts the rows of {token}, but does not contain them afterwards"
    )


def columns_to_count(table: ClickHouseTable, only: Sequence[str] | None = None) -> list[str]:
    """Return the columns that we fill and by which a range is counted; empty if it cannot be counted.

    A count without the topic proves nothing: the table may have the rows of two. Nor does a column that the
    rows have themselves: it is data.

    Args:
        only: the columns that are written; None: all.
    """
    place = [name for name in table.coordinates(only) if name != "timestamp"]
    return place if table.counting.found and len(place) == len(OFFSET_COLUMNS) else []


def advice_to_count(
    table: ClickHouseTable, only: Sequence[str] | None, rows: set[str]
) -> str | None:
    """Say why rows with these columns cannot be counted in a table that has places of records; or None."""
    place = set(table.coordinates(only)) - {"timestamp"}
    if not {"partition", "offset"} <= place or not table.counting.found:
        return None
    if "topic" not in place:
        return (
            f"{table} has no column topic, so rows of two topics cannot be told apart; run ALTER TABLE "
            f"{table.identifier} ADD COLUMN topic LowCardinality(String)"
        )
    if own := sorted(place & rows):
        return (
            f"the rows have columns {', '.join(own)} of their own, which may be anything; leave them out: "
            f"those that {table} has and the rows lack are filled from the record"
        )
    return None


async def _count(inserter: Inserter, insert: RangeRows) -> int:
    """Count the rows of exactly the insert's offsets: others may lie between them.

    On a replica that has everything that any replica has accepted.
    """
    table = inserter.table
    ranges = insert.ranges
    where = (
        "`partition` = {partition:Int64} AND `offset` BETWEEN {first:Int64} AND {last:Int64} "
        "AND arrayExists(r -> `offset` BETWEEN r.1 AND r.2, {ranges:Array(Tuple(Int64, Int64))}) "
        "AND `topic` = {topic:String}"
    )
    sql = f"SELECT count() AS found FROM {table.identifier} WHERE {where}"  # noqa: S608  quoted
    synchronize: tuple[str, ...] = ()
    if table.engine.startswith("Shared"):
        sql += " SETTINGS select_sequential_consistency = 1"
    elif table.is_replicated:
        synchronize = (f"SYSTEM SYNC REPLICA {table.identifier} LIGHTWEIGHT",)
    found = 0
    owners = dict.fromkeys(r.topic_partition for r in ranges)
    for owner in owners:
        own = [r for r in ranges if r.topic_partition == owner] if len(owners) > 1 else ranges
        for start in range(0, len(own), _RANGES_AT_A_TIME):
            some = own[start : start + _RANGES_AT_A_TIME]
            parameters = {
                "partition": owner.partition,
                "topic": owner.topic,
                "first": some[0].first,
                "last": some[-1].last,
                "ranges": [(r.first, r.last) for r in some],
            }
            found += await _ask(inserter, sql, parameters, *synchronize)
    return found


async def _ask(inserter: Inserter, sql: str, parameters: Mapping[str, object], *before: str) -> int:
    """Return the number `found`. Raises as `_query`."""
    rows = await _query(inserter, sql, parameters, *before)
    return int(rows[0]["found"])


async def _query(
    inserter: Inserter, sql: str, parameters: Mapping[str, object], *before: str
) -> list[dict[str, Any]]:
    """Return the rows of a query. Raises Retry if the server does not answer now.

    Args:
        before: statements to run first.
    """
    table, connection = inserter.table, inserter.connection
    try:
        for statement in before:
            await connection.execute(statement)
        statement = sql
        rows = await connection.rows(sql, parameters)
        if await inserter.follow():
            raise Retry(f"{table} was exchanged while it was counted", may_double=False)
    except (KmrError, Retry):
        raise
    except Exception as error:
        failure = of_clickhouse(error)
        if failure.kind == "later":
            reason = f"{table}: {failure.reason}"
            raise Retry(reason, after=failure.after, may_double=False) from error
        raise SinkError(
            f"{table}: cannot find out whether a range was written: {failure.reason}. The server refused: "
            f"{' '.join(statement.split())}"
        ) from error
    return rows
