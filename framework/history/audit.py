"""The count that proves a history: every offset is in the table once, was filtered, or is a dead letter.

Pieces of the history that have one row for each offset are proven by counting in the table. The other pieces
are read again and mapped: what the map makes of a record must be in the table, as often as the map makes it;
what it filters must not be; what fails must be among the dead letters.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

import numpy as np
import structlog

from ..archives.archive import Archive, ArchiveSource
from ..config.schema import show_count
from ..dead_letters.letters import Letters, letters_among
from ..kafka.admin import connect_admin
from ..kafka.connection import connection_config
from ..kafka.reading import RecordSelection, read_topic
from ..peeking import map_batches
from ..record import Range
from ..service.threads import run_in_thread
from ..sinks.kafka.letter_writer import DeadLetterWriter
from ..sinks.offset_tables import NoTable, NotCounted, OffsetTable, TableNotMade, offset_table
from ..tagged_rows import rows_by_branch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from numpy.typing import NDArray

    from ..peeking import MappedRecords
    from ..record import Batch, TopicPartition
    from ..reducers.reducer import Reducer
    from ..settings import Settings
    from ..strategy import Strategy
    from .plan import BackfillPlan

_log = structlog.get_logger(__name__)

_PIECE: Final = 1_000_000
"""Offsets that are read again at a time where the table does not have each of them once."""


@dataclass(slots=True)
class AuditCounts:
    """Offsets of one partition's history, by where they are.

    Attributes:
        offsets: all of them.
        delivered: in the table, as often as the map makes rows of the record.
        filtered: the map makes no row of the record, and the table has none.
        dead: the record failed, and is among the dead letters.
        no_record: compaction removed the record, or it is a mark of a transaction.
        missing: neither in the table nor among the dead letters.
        doubled: more rows than the map makes of the record.
        gone: without a row, and retention has deleted the record: nothing can be proven.
    """

    offsets: int = 0
    delivered: int = 0
    filtered: int = 0
    dead: int = 0
    no_record: int = 0
    missing: int = 0
    doubled: int = 0
    gone: int = 0

    def add(self, other: AuditCounts) -> None:
        """Add the counts of other offsets."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def is_complete(self) -> bool:
        """Whether each offset is where it belongs, once."""
        return not (self.missing or self.doubled or self.gone)


@dataclass(slots=True)
class AuditResult:
    """The counts of a history.

    Attributes:
        counts: of each partition; empty if rows cannot be counted.
        uncounted: why they cannot; empty if they can.
        examples: of offsets that are missing or doubled.
        trusted: failed records that were not looked up among dead letters, because these are not in a topic.
    """

    counts: dict[TopicPartition, AuditCounts] = field(default_factory=dict)
    uncounted: str = ""
    examples: list[str] = field(default_factory=list)
    trusted: bool = False

    @property
    def total(self) -> AuditCounts:
        """The counts of all partitions."""
        total = AuditCounts()
        for counts in self.counts.values():
            total.add(counts)
        return total

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing or doubled, as far as rows can be counted."""
        return self.total.is_complete

    def lines(self) -> list[str]:
        """Return the result as text."""
        if self.uncounted:
            return [
                f"not counted: {self.uncounted}; by the committed offsets the history is complete"
            ]
        total = self.total
        shown = (
            f"{total.delivered:,} in the table",
            f"{total.filtered:,} filtered",
            f"{total.dead:,} dead letters" + (" (not looked up)" if self.trusted else ""),
            f"{total.no_record:,} without a record",
            f"{total.missing:,} missing",
            f"{total.doubled:,} doubled",
        )
        lines = [f"{show_count(total.offsets, 'offset')} of the history: {', '.join(shown)}"]
        if total.gone:
            lines.append(
                f"{show_count(total.gone, 'offset')} without a row, whose records are not in the topic "
                "any more"
            )
        lines += [f"  {example}" for example in self.examples[:10]]
        lines.append("complete" if self.is_complete else "NOT complete")
        return lines


async def audit(settings: Settings, strategy: Strategy, plan: BackfillPlan) -> AuditResult:
    """Count the history of a plan in the tables of a strategy.

    Args:
        settings: those of a worker of the group.

    Raises:
        KmrError: a table or the brokers do not answer, or the map cannot run.
    """
    try:
        topics = sorted({at.topic for at in plan.histories})
        tables = await run_in_thread(_tables, strategy, topics, plan.group)
    except NotCounted as reason:
        return AuditResult(uncounted=str(reason))
    return await _Audit(settings, strategy, plan, tables).run()


def _tables(strategy: Strategy, topics: Sequence[str], group: str) -> dict[str, OffsetTable]:
    """Return the tables of the branches. Raises NotCounted."""
    found = {}
    if strategy.distincts:
        raise NotCounted(
            "Distinct leaves out rows because of other records; kmr check --table TABLE --group GROUP counts "
            "the table, with the duplicates among what is filtered or missing"
        )
    for name, chain in strategy.chains.items():
        for reducer in (*strategy.reducers[:-1], *chain[:-1]):
            if not reducer.keeps_rows:
                made = type(reducer).__name__
                raise NotCounted(
                    f'{made} makes rows of many records; let it count these, ("*", "count"), and compare the '
                    "sum, in the table and in the letters of refused rows (kmr dlq show --rows), with the "
                    "records of the topic; kmr chaos tries whether each row is there once"
                )
        table = found[name] = _table(chain[-1], topics, group)
        if table.doubt:
            raise NotCounted(table.doubt)
    return found


def _table(sink: Reducer, topics: Sequence[str], group: str) -> OffsetTable:
    """Return the table of a sink; one that was never made, because nothing was written, has no rows."""
    try:
        return offset_table(sink, topics, group)
    except TableNotMade as reason:
        _log.warning("counted as a table without rows", reason=str(reason))
        return NoTable()


class _Audit:
    """One count.

    Args:
        tables: of the branches, by name; one named "" without branches.
    """

    def __init__(
        self,
        settings: Settings,
        strategy: Strategy,
        plan: BackfillPlan,
        tables: Mapping[str, OffsetTable],
    ) -> None:
        self._settings = settings
        self._config = connection_config(settings)
        self._strategy = strategy
        self._plan = plan
        self._tables = tables
        self._archive: Archive | None = None
        self._letters: dict[TopicPartition, NDArray[np.int64]] | None = None
        self._result = AuditResult()

    async def run(self) -> AuditResult:
        pieces: dict[TopicPartition, list[tuple[int, int]]] = {}
        for at, history in self._plan.histories.items():
            counts = self._result.counts[at] = AuditCounts(offsets=history.until - history.first)
            doubtful = await run_in_thread(self._doubtful, at, history.first, history.until)
            pieces[at] = doubtful
            counts.delivered = counts.offsets - sum(end - first for first, end in doubtful)
        if any(pieces.values()):
            await self._read_again(pieces)
        return self._result

    def _doubtful(self, at: TopicPartition, first: int, until: int) -> list[tuple[int, int]]:
        """Return the pieces in which not each offset has one row in each table."""
        perfect = [
            table.perfect(at, first, until, _PIECE)
            for table in (self._tables.values() if first < until else ())
        ]
        return [
            (begin, min(begin + _PIECE, until))
            for number, begin in enumerate(range(first, until, _PIECE))
            if not all(number in each for each in perfect)
        ]

    async def _read_again(self, pieces: Mapping[TopicPartition, list[tuple[int, int]]]) -> None:
        offsets = sum(end - first for each in pieces.values() for first, end in each)
        _log.info("mapping what has no row, or several, again", offsets=offsets)
        async with connect_admin(self._config) as admin:
            starts = await admin.beginning_offsets(list(pieces))
        source = ArchiveSource.of(self._settings)
        if source is not None:
            self._archive = await run_in_thread(partial(Archive.open, source))
        self._letters = await self._dead_letters()
        self._result.trusted = self._letters is None and self._strategy.reduce_err is not None
        for row in zip_longest(*([(at, *piece) for piece in each] for at, each in pieces.items())):
            round_ = {at: (first, until) for at, first, until in filter(None, row)}
            for topic in sorted({at.topic for at in round_}):
                here = {at: span for at, span in round_.items() if at.topic == topic}
                archived = {at: self._archived(at, *span, starts[at]) for at, span in here.items()}
                mapped = await self._map(topic, here, archived, starts)
                for at, (first, until) in here.items():
                    start = first if archived[at] > first else starts[at]
                    await run_in_thread(
                        self._compare, at, first, until, start, mapped[at.partition]
                    )

    def _archived(self, at: TopicPartition, first: int, until: int, start: int) -> int:
        """Return the offset up to which a piece is read from the archive; `first` for nothing.

        Where the topic begins behind the end of the archive by now, nothing of it proves anything.
        """
        if self._archive is None:
            return first
        end = min(until, self._archive.end(at, first))
        return end if end >= min(start, until) else first

    async def _map(
        self,
        topic: str,
        spans: Mapping[TopicPartition, tuple[int, int]],
        archived: Mapping[TopicPartition, int],
        starts: Mapping[TopicPartition, int],
    ) -> dict[int, _Made]:
        made: dict[int, _Made] = defaultdict(_Made)
        window = RecordSelection(
            spans={
                at.partition: (max(archived[at], starts[at]), until)
                for at, (_, until) in spans.items()
                if archived[at] < until
            },
            isolation_level=self._settings.isolation_level,
        )

        async def batches() -> AsyncIterator[Batch]:
            for at, (first, _) in spans.items():
                if self._archive is not None and archived[at] > first:
                    read = self._archive.batches(Range(*at, first, archived[at] - 1))
                    while (batch := await run_in_thread(partial(next, read, None))) is not None:
                        yield batch
            if window.spans:
                async for batch in read_topic(self._config, topic, window):
                    yield batch

        async for mapped in map_batches(self._config, self._strategy, topic, batches()):
            made[mapped.batch.partition].add(mapped)
        return made

    def _compare(self, at: TopicPartition, first: int, until: int, start: int, made: _Made) -> None:
        """Compare what the map makes of the records of a piece with the tables and the dead letters."""
        counts = self._result.counts[at]
        records = made.records()
        accounted, present = [made.failed()], []
        missing, doubled = [], []
        for name, table in self._tables.items():
            found = table.find(at, first, until)
            expected, times = np.unique(made.rows(name), return_counts=True)
            accounted.append(expected)
            rows = np.zeros(len(expected), np.int64)
            rows[np.isin(expected, found.offsets)] = found.rows[np.isin(found.offsets, expected)]
            missing.append(expected[rows < times])
            present.append(found.offsets)
            # A record that retention removed cannot be mapped: any number of its rows is right.
            wanted = np.isin(found.offsets, records, invert=True).astype(np.int64)
            wanted[np.isin(found.offsets, expected)] = times[np.isin(expected, found.offsets)]
            doubled.append(found.offsets[found.rows > wanted])
        in_tables = _union(present)
        absent = np.union1d(_union(missing), made.failed())
        letters = absent if self._letters is None else self._letters.get(at, _NONE)
        if self._letters is None:
            letters = made.failed()
        dead = np.intersect1d(absent, letters)
        lost = np.setdiff1d(absent, dead)
        twice = _union(doubled)
        filtered = np.setdiff1d(records, _union(accounted))
        counts.missing += len(lost)
        counts.doubled += len(twice)
        counts.dead += len(dead)
        counts.filtered += len(np.setdiff1d(filtered, in_tables))
        counts.delivered += len(np.setdiff1d(in_tables, np.union1d(absent, twice)))
        readable = max(0, until - max(first, start))
        counts.no_record += (
            readable - len(records) - len(np.setdiff1d(in_tables[in_tables >= start], records))
        )
        counts.gone += (until - first - readable) - int(np.count_nonzero(in_tables < start))
        for what, some in (("missing", lost), ("doubled", twice)):
            self._result.examples += [f"{what}: {at} offset {offset}" for offset in some[:5]]

    async def _dead_letters(self) -> dict[TopicPartition, NDArray[np.int64]] | None:
        """Return the offsets of the letters of each partition; None if they are in no topic."""
        writer = self._strategy.reduce_err
        if not isinstance(writer, DeadLetterWriter) or writer.bootstrap_servers is not None:
            return None if writer is not None else {}
        letters = Letters.of(
            [
                letters_among(batch.records)
                async for batch in read_topic(self._config, writer.topic, RecordSelection())
            ]
        )
        topics = np.array(letters.texts["topic"].to_pylist(), object)
        topics[letters.of_rows] = None  # their records are in other rows
        partitions, offsets = letters.numbers["partition"], letters.numbers["offset"]
        return {
            at: np.unique(offsets[(topics == at.topic) & (partitions == at.partition)])
            for at in self._plan.histories
        }


_NONE: Final = np.empty(0, np.int64)


def _union(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.unique(np.concatenate([_NONE, *parts]))


class _Made:
    """What the map makes of the records of one piece: offsets, with repeats for several rows."""

    def __init__(self) -> None:
        self._records: list[NDArray[np.int64]] = []
        self._failed: list[NDArray[np.int64]] = []
        self._rows: dict[str, list[NDArray[np.int64]]] = defaultdict(list)

    def add(self, mapped: MappedRecords) -> None:
        """Add a batch."""
        result = mapped.result
        self._records.append(mapped.batch.offsets())
        self._failed.append(np.array([each.offset for each in result.failures], np.int64))
        if result.table is not None:
            for name, _, places in rows_by_branch(result.table):
                self._rows[name].append(result.offsets[places])

    def records(self) -> NDArray[np.int64]:
        """The offsets that have a record."""
        return _union(self._records)

    def failed(self) -> NDArray[np.int64]:
        """The offsets whose record failed."""
        return _union(self._failed)

    def rows(self, branch: str) -> NDArray[np.int64]:
        """The offset of each row for a branch."""
        return np.concatenate([_NONE, *self._rows[branch]])
