"""A model of ClickHouse, as far as `ClickHouseWriter` uses it: one table that remembers its inserts.

The real writer casts, plans, inserts and counts; `ModelConnection` replaces its connection.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio
import pyarrow as pa
from clickhouse_connect.driver.exceptions import DatabaseError

from ..record import OFFSET_COLUMNS
from ..sinks.clickhouse.client import ClickHouseConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from io import BytesIO

    from ..record import TopicPartition
    from ..sinks.planning import RangeRows
    from .sinks import BranchModels


@dataclass(slots=True)
class ModelTable:
    """A MergeTree without replication.

    Attributes:
        columns: names and types.
        window: how many inserts it remembers (`non_replicated_deduplication_window`).
        rows: the topic, partition and offset of each row, as far as it has these columns.
        blocks: the number of inserts that were not dropped as a repetition.
    """

    columns: Mapping[str, str]
    window: int = 10_000
    rows: list[dict[str, Any]] = field(default_factory=list)
    blocks: int = 0
    _tokens: deque[str] = field(default_factory=deque)

    def insert(self, token: str, rows: Sequence[dict[str, Any]]) -> bool:
        """Insert rows; return False if the token is known: they are dropped."""
        if not self.remember(token):
            return False
        self.rows += rows
        self.blocks += 1
        return True

    def remember(self, token: str) -> bool:
        """Remember the token of an insert; return False if it is known."""
        if token in self._tokens:
            return False
        self._tokens.append(token)
        if len(self._tokens) > self.window:
            self._tokens.popleft()
        return True

    def delete(self, partition: TopicPartition, first: int) -> None:
        """Delete the rows of a partition from an offset on; the tokens of their inserts stay."""
        self.rows = [
            row
            for row in self.rows
            if (row.get("topic"), row.get("partition")) != partition or row["offset"] < first
        ]

    def count(self, topic: str, partition: int, ranges: Sequence[tuple[int, int]]) -> int:
        """Count the rows of one partition whose offsets are in the ranges, both ends inclusive."""
        return sum(
            row["topic"] == topic
            and row["partition"] == partition
            and any(first <= row["offset"] <= last for first, last in ranges)
            for row in self.rows
        )


@dataclass(frozen=True)
class ModelConnection(ClickHouseConnection):
    """What `ClickHouseWriter` needs of a connection, answered by a `ModelTable`."""

    models: BranchModels = field(kw_only=True)
    writing: Callable[[], RangeRows | None] = field(kw_only=True)

    async def rows(
        self, sql: str, parameters: Mapping[str, Any], settings: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        if "AS signature" in sql:  # takes no time: it is asked before many inserts
            return [{"signature": 0}]
        return await self.models.world.request(
            "", "ClickHouse", "query", lambda: self._answer(sql, parameters), OSError
        )

    def _answer(self, sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        table = self.models.table
        if " AS expression" in sql:  # no column has a default that raises
            return []
        if "FROM system.columns" in sql:
            return [
                {"name": name, "type": kind, "default_kind": ""}
                for name, kind in table.columns.items()
            ]
        if "FROM system.tables" in sql and "dependencies" not in sql:
            engine = f"MergeTree SETTINGS non_replicated_deduplication_window = {table.window}"
            merge_tree = {"engine": "MergeTree", "engine_full": engine, "sorting_key": ""}
            return [merge_tree | {"create_table_query": ""}]
        if "FROM system.parts" in sql:
            return [{"found": table.blocks}]
        if "SELECT DISTINCT `partition`" in sql:
            ends = zip(
                *(parameters[each] for each in ("partitions", "firsts", "lasts")), strict=True
            )
            topic = parameters["topic"]
            return [{"partition": p} for p, *ends in ends if table.count(topic, p, [tuple(ends)])]
        if sql.startswith("SELECT count() AS found"):
            of = (parameters[name] for name in ("topic", "partition", "ranges"))
            return [{"found": table.count(*of)}]
        return []  # settings and views: the defaults

    async def insert(
        self, table: str, columns: Sequence[str], block: BytesIO, settings: Mapping[str, Any]
    ) -> None:
        models, token = self.models, settings["insert_deduplication_token"]
        rows = self.writing()
        checks, sink, model = models.checks, models.sink, models.table
        member = models.member()

        def effect() -> None:
            sent = pa.ipc.open_stream(block.getvalue()).read_all()
            if (
                rows is None or rows.shared != token
            ):  # a shared token stands for any of its ranges, or all
                checks.same(token.partition("/again-")[0], repr(sent.to_pydict()).encode())
            known = [name for name in OFFSET_COLUMNS if name in sent.column_names]
            parts = () if rows is None else rows.parts
            if parts and parts[0].closes is not None:  # sections of rows of windows
                parts = (replace(parts[0], table=sent),)
                if reasons := sink.refused(parts[0]):
                    raise DatabaseError(f"Code: 469. DB::Exception: {min(reasons.items())[1]}")
            if model.insert(token, sent.select(known).to_pylist()) and rows is not None:
                sink.wrote(member, parts, only=_refused(rows, sent))
            checks.memory(member)

        if rows is not None:
            sink.sends(member, rows.parts)
            if "/again-" not in token:
                sink.has_asked(member, rows.parts)
        with anyio.fail_after(self.timeout):
            await models.world.request(
                "sink",
                "ClickHouse",
                f"inserts {_shown(token)}",
                effect,
                OSError,
                torn=(lambda: model.remember(token)) if models.countable else None,
            )

    async def execute(self, sql: str, settings: Mapping[str, Any] | None = None) -> None:
        """See `ClickHouseConnection.execute`: there is nothing to alter."""

    async def close(self) -> None: ...


def _shown(token: str) -> str:
    found = re.search(r"[^:]+:\d+:\d+-\d+.*", token)
    return found[0] if found else token


def _refused(rows: RangeRows, sent: pa.Table) -> set[int] | None:
    """Return the offsets that were sent, if some rows were refused before; None if all were sent."""
    if len(sent) == len(rows) or "offset" not in sent.column_names:
        return None
    offsets: set[int] = set(sent.column("offset").to_numpy().tolist())
    return offsets
