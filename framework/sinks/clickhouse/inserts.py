"""Write the inserts of a flush with deduplication tokens; find the rows that the server refuses."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import sha256
from itertools import groupby
from typing import TYPE_CHECKING, Any

import anyio
import pyarrow as pa
import structlog

from ...columns.column_types import choose_type
from ...columns.kinds import has_values, whole
from ...columns.reasons import count_values
from ...errors import KmrError, StrategyError
from ...record import PLACED, with_coordinates
from ...reducers.reducer import Retry
from ...service.threads import run_in_thread
from ..answers import Answer, PutOff, of_clickhouse, put_off
from ..choosing import choose
from ..parquet.columns import stored_type
from ..planning import Section
from .counting import advice_to_count, columns_to_count
from .ddl import add_columns
from .fences import is_exchanged, is_refused
from .raising import raising
from .refusals import Refusals, unconvertible
from .table import SchemaMismatch, read_table, signature_of
from .types import fields_left_out
from .violations import violations

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

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
_LOOK_AGAIN = 0.25  # seconds between two looks whether the table was altered
_NO_MEMORY: Mapping[str, int] = {"insert_deduplicate": 0}
_ALTER_SETTINGS: Mapping[str, int] = {"alter_sync": 2}  # wait for all replicas
_SMALL_ROWS = 64
_MOST_REFUSED = 200  # small sections; more are divided only while they save more rows than that
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
        late: the answers "later".
    """

    todo: deque[Section]
    small: int
    is_begun: bool = False
    late: PutOff[Answer] = field(default_factory=PutOff)
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
        self.late.is_written |= outcome is _SectionOutcome.WRITTEN
        if size <= self.small:
            self._refusals += outcome is not _SectionOutcome.WRITTEN
            self._written += size * (outcome is _SectionOutcome.WRITTEN)
        if outcome is _SectionOutcome.DIVIDED:
            add = self.todo.extend if size > self.small else self.todo.extendleft
            add(section.halves())


@dataclass(slots=True)
class _Attempt:
    """One attempt to write an insert.

    Attributes:
        last: no further one is made if the table was altered.
    """

    insert: RangeRows
    block: Block
    table: ClickHouseTable
    refusals: Refusals
    division: _Division
    last: bool


def _left(section: Section, there: Collection[int]) -> Section:
    """Return a section with the rows that the table has: its token is another one then."""
    found = [row for row in range(section.start, section.stop) if row in there] if there else []
    return replace(section, there=sha256(str(found).encode()).hexdigest()[:16] if found else "")


@dataclass(slots=True)
class _Look:
    """The last look at a table's columns: when, and their signature. Copies of a writer share it."""

    at: float = -math.inf
    signature: int | None = None


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
        signature: of the table's columns, as they were read last.
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
    signature: int | None = None
    _outcomes: dict[str, _SectionOutcome | Answer] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)
    _refused_columns: set[str] = field(default_factory=set)
    _look: _Look = field(default_factory=_Look)

    async def write(self, insert: RangeRows, there: Collection[int] = ()) -> Mapping[int, str]:
        """Write an insert; return the numbers of rows that the table cannot store, with the reasons.

        Args:
            there: the numbers of rows that the table has.

        Raises:
            Retry: the server will accept the rows later.
            StrategyError: rows and table do not fit, or the server refuses permanently.
            Exception: the client's own, when `of_clickhouse` does not know it.
        """
        try:
            try:
                return await self._attempt(insert, there)
            except SchemaMismatch:
                await self._reread()
            return await self._attempt(insert, there, last=True)
        except (KmrError, Retry):
            raise
        except Exception as error:
            self._raise(error, f"the rows of {insert.token}")
            raise

    async def execute(self, statement: str) -> None:
        """Run an INSERT ... SELECT that may be repeated. Raises as `write`."""
        try:
            await self.connection.execute(statement, _NO_MEMORY)
        except Exception as error:
            self._raise(error)
            raise

    def _raise(self, error: Exception, rows: str = "the rows") -> None:
        """Raise what a server's answer means; return if it is not known."""
        answer = of_clickhouse(error)
        if answer.kind == "later":
            doubles = not (answer.not_begun or self.deduplicates)
            reason = f"{self.table}: {answer.reason}"
            raise Retry(reason, after=answer.after, may_double=doubles) from error
        if answer.kind != "unknown":
            raise StrategyError(f"{self.table} refuses {rows}: {answer.reason}") from error

    def forget(self) -> None:
        """Forget the outcomes of all sections."""
        self._outcomes = {}

    async def refused(self, insert: RangeRows) -> dict[int, str]:
        """Return the row numbers that do not fit the table's columns, each with the reason."""
        return (await self._fit(insert))[0].refused

    async def _fit(self, insert: RangeRows) -> tuple[Block, ClickHouseTable]:
        """Cast the rows; read the table again if it refuses some: its definition may be outdated.

        It is read again, too, where it was altered: the server would make other values of ours.
        """
        await self._look_for_changes()
        if self.evolve is not None:
            await self._add_columns([rows.table for rows in insert.parts], self.evolve)
        table = self.table
        block = await run_in_thread(self._cast, insert, table)
        if block.refused and await self._reread() != table:
            table = self.table
            block = await run_in_thread(self._cast, insert, table)
        return block, table

    async def _attempt(
        self, insert: RangeRows, there: Collection[int], *, last: bool = False
    ) -> Mapping[int, str]:
        block, table = await self._fit(insert)
        refusals = Refusals(block, block.refused, set(block.fitted.general))
        self.require_taken(insert, block.refused)
        division = _Division(deque(insert.sections()), max(_SMALL_ROWS, len(insert) // 512))
        attempt = _Attempt(insert, block, table, refusals, division, last)
        block.refused.update(dict.fromkeys(there, "the table has it"))
        while division.todo and not division.late.is_hopeless:
            section = _left(division.todo.popleft(), there)
            if section.there and section.stop - section.start > division.small:
                division.note(section, _SectionOutcome.DIVIDED)
                continue
            outcome = self._outcomes.get(section.token)
            if outcome is None:
                outcome = await self._send(section, attempt)
                if isinstance(outcome, Answer):
                    if await self._finds(section, attempt, outcome):
                        # With the same token: nothing was written under it.
                        division.todo.appendleft(section)
                        continue
                    outcome = self._refused(section, attempt, outcome)
                self._outcomes[section.token] = outcome
            division.note(section, outcome)
            if isinstance(outcome, Answer):
                refusals.add(section, outcome)
        if (late := division.late.reason_to_wait) is not None:
            self.forget()
            raise Retry(f"{table}: {late.reason}", after=late.after, may_double=False)
        for row in there:
            del refusals.reasons[row]
        self.set_up.judge(table, len(insert), refusals.reasons, refusals.general)
        self.leaving_out.of(table, block.fitted)
        return refusals.explained()

    def _refused(
        self, section: Section, attempt: _Attempt, answer: Answer
    ) -> _SectionOutcome | Answer:
        """Return the outcome of a section that is refused."""
        insert, division = attempt.insert, attempt.division
        if insert.joined and insert.shared:
            reason = f"some rows of {len(insert.joined)} partitions: {answer.reason}"
            raise Retry(f"{self.table}: {reason}", after=0.0, may_double=False)  # each alone
        if answer.kind == "later":
            division.late.note(answer)
            answer = replace(answer, reason=put_off(answer.reason))
        self.require_taken(insert, dict.fromkeys(range(section.start, section.stop), answer.reason))
        return _SectionOutcome.DIVIDED if division.divides(section) else answer

    async def _finds(self, section: Section, attempt: _Attempt, answer: Answer) -> bool:
        """Add the rows of a section that an answer is about; return whether some are found undivided."""
        if answer.kind == "later":
            return False
        insert, block, refusals = attempt.insert, attempt.block, attempt.refusals
        numbers = [row for row in range(section.start, section.stop) if row not in block.refused]
        rows = block.table.take(numbers)
        found = unconvertible(block.columns, rows, answer) or await violations(
            self.connection, block.columns, rows, answer.message
        )
        if found:
            found = {numbers[row]: reason for row, reason in found.items()}
            self.require_taken(insert, found)
            refusals.add_found(found, answer)
            return True
        if attempt.division.is_begun:
            return False
        answers = await raising(self.connection, attempt.table, block.columns, rows)
        self.require_taken(insert, {numbers[row]: each.reason for row, each in answers.items()})
        for row, each in answers.items():
            refusals.add(Section(section.of, numbers[row], numbers[row] + 1), each)
        return bool(answers)

    def counts(self, parts: Sequence[Rows]) -> bool:
        """Return whether the table can tell how many rows of an insert it has."""
        filled = set(columns_to_count(self.table, self.columns))
        return bool(filled) and all(
            rows.offsets is not None
            and rows.places is None
            and (filled.isdisjoint(rows.table.column_names) or rows.table.schema.metadata == PLACED)
            for rows in parts
        )

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
        if not self.are_changes:  # rows of deleted ones have no other values than null
            block.refuse_lost_nulls()
        return replace(block, fitted=block.fitted._replace(left_out=left_out))

    async def _add_columns(self, parts: Sequence[pa.Table], layout: TableLayout) -> None:
        """Add the columns that the table lacks. Another process may do the same at the same time."""
        if not self._without_refused(_new_fields(parts, self.table, self.columns)):
            return
        fields = _new_fields(parts, await self._reread(), self.columns)
        if not (fields := self._without_refused(fields)):
            return
        try:
            await self._alter(add_columns(self.table.identifier, fields, layout))
        except Exception as error:
            if of_clickhouse(error).kind != "rows":
                raise
            for field in fields:
                await self._add_if_possible(field, layout)
        await self._reread()

    async def _add_if_possible(self, field: pa.Field[Any], layout: TableLayout) -> None:
        """Add a column; if the server refuses it, rows with values of it are refused from now on."""
        try:
            await self._alter(add_columns(self.table.identifier, [field], layout))
        except Exception as error:
            answer = of_clickhouse(error)
            if answer.kind != "rows":
                raise
            self._refused_columns.add(field.name)
            _log.warning(
                "a column cannot be added: rows that have it are refused",
                table=str(self.table),
                column=field.name,
                reason=answer.reason,
            )

    async def _alter(self, statement: str) -> None:
        await self.connection.execute(statement, _ALTER_SETTINGS)
        _log.info("columns added to the table", table=str(self.table), statement=statement)

    def _without_refused(self, fields: Sequence[pa.Field[Any]]) -> list[pa.Field[Any]]:
        return [each for each in fields if each.name not in self._refused_columns]

    async def _send(self, section: Section, attempt: _Attempt) -> _SectionOutcome | Answer:
        block, table, last = attempt.block, attempt.table, attempt.last
        body = await run_in_thread(block.encode, section.start, section.stop, self.compression)
        if body is None:
            return _SectionOutcome.WRITTEN
        settings = {
            **_SETTINGS,
            "input_format_null_as_default": int(block.has_filled_nulls),
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
            if answer.kind in ("rows", "schema") or (
                attempt.insert.divides_later and answer.may_be_of_rows
            ):
                return answer
            raise
        return _SectionOutcome.WRITTEN

    async def _look_for_changes(self) -> None:
        look, now = self._look, anyio.current_time()
        if now >= look.at + _LOOK_AGAIN:
            look.at, look.signature = now, await signature_of(self.connection, self.table)
        if look.signature != self.signature:
            await self._reread()
            self.signature = look.signature

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
            if not _are_named(each):
                continue  # its rows are refused
            found.setdefault(name, {}).setdefault(kind, each)
            column = part.column(name)
            values[name, kind] += len(column) - column.null_count
    new = []
    for name, kinds in found.items():
        chosen = choose_type({kind: values[name, kind] for kind in kinds}).type
        new.append(kinds.get(chosen, pa.field(name, chosen)).with_type(stored_type(chosen)))
    return new


def _are_named(field: pa.Field[Any]) -> bool:
    """Return whether ClickHouse has the names of a column and its fields."""
    inside = (field.type.field(at) for at in range(field.type.num_fields))
    return bool(field.name) and min(field.name) >= " " and all(map(_are_named, inside))
