"""One insert on its way into a table: sent whole, divided where rows are refused, never sent twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from anyio import to_thread

from framework.errors import KmrError, StrategyError
from framework.reducer import Retry
from framework.sinks.clickhouse.errors import classify
from framework.sinks.clickhouse.table import SchemaMismatch, read_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from framework.reducer import Poisoned
    from framework.sinks.clickhouse.client import Connection
    from framework.sinks.clickhouse.inserts import Insert, Section
    from framework.sinks.clickhouse.table import Block, Compression, ExtraColumns, Table

__all__ = ["Inserter"]

_SETTINGS: Mapping[str, int] = {
    "async_insert": 0,  # the answer comes when the rows are in the table, or not at all
    "input_format_null_as_default": 1,  # only where a column has a DEFAULT: else null is refused
}


class _Fate(Enum):
    """What became of a section, unless it is one row that was refused: then it is the reason."""

    WRITTEN = 1
    DIVIDED = 2


@dataclass(slots=True)
class Inserter:
    """Writes inserts into one table, several at a time.

    It remembers what became of each section, so that an attempt goes on where the last one ended;
    `forget` when all of it has been delivered.
    """

    connection: Connection
    table: Table
    columns: Sequence[str] | None
    extra_columns: ExtraColumns
    compression: Compression
    _fates: dict[str, _Fate | str] = field(default_factory=dict)

    async def write(self, insert: Insert) -> list[Poisoned] | Retry:
        """Write an insert; returns the rows that the table cannot take.

        Raises:
            StrategyError: rows and table do not fit, or the server refuses for good.
            Exception: of the client, when it is not known what it means.
        """
        table = self.table
        try:
            try:
                return await self._attempt(insert)
            except SchemaMismatch:
                if await self._reread() == table:
                    raise
            return await self._attempt(insert)
        except KmrError:
            raise
        except Exception as error:
            trouble = classify(error)
            if trouble.kind == "later":
                return Retry(trouble.after, f"{self.table}: {trouble.reason}")
            if trouble.kind == "unknown":
                raise
            raise StrategyError(f"{self.table} refuses: {trouble.reason}") from error

    def forget(self) -> None:
        """What was attempted so far is done with."""
        self._fates = {}

    async def _attempt(self, insert: Insert) -> list[Poisoned]:
        table = self.table
        block = await to_thread.run_sync(self._cast, insert, table)
        if block.refused and await self._reread() != table:
            # refused by a definition that was no longer true
            table = self.table
            block = await to_thread.run_sync(self._cast, insert, table)
        refused = dict(block.refused)
        todo = insert.sections()
        while todo:
            section = todo.pop()
            fate = self._fates.get(section.token)
            if fate is None:
                fate = self._fates[section.token] = await self._send(section, block, table)
            if fate is _Fate.DIVIDED:
                todo += section.halves()
            elif isinstance(fate, str):
                refused[section.start] = fate
        return list(insert.poisoned(refused))

    def _cast(self, insert: Insert, table: Table) -> Block:
        parts = [rows.table for rows in insert.parts]
        names = dict.fromkeys(name for part in parts for name in part.column_names)
        return table.cast(parts, table.choose(list(names), self.columns, self.extra_columns))

    async def _send(self, section: Section, block: Block, table: Table) -> _Fate | str:
        start, stop = section.start, section.stop
        body = await to_thread.run_sync(block.encode, start, stop, self.compression)
        if body is None:
            return _Fate.WRITTEN
        settings = {**_SETTINGS, "insert_deduplication_token": section.token}
        try:
            await self.connection.insert(table.identifier, block.table.column_names, body, settings)
        except Exception as error:
            trouble = classify(error)
            if trouble.kind == "data":
                return trouble.reason if stop - start == 1 else _Fate.DIVIDED
            if trouble.kind == "schema":
                raise SchemaMismatch(f"{table} refuses: {trouble.reason}") from error
            raise
        return _Fate.WRITTEN

    async def _reread(self) -> Table:
        self.table = await read_table(self.connection, self.table.database, self.table.name)
        return self.table
