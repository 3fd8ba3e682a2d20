"""The rows of windows after a storm: which records they have, and whether each is in the right one, once."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
from clickhouse_connect.driver.binding import quote_identifier

from ..errors import SinkError, StrategyError
from ..memory.window_model import OFFSETS, WindowOutcomes, WindowsOfLog
from ..record import OFFSET_COLUMNS, Batch, TopicPartition
from ..sinks.clickhouse.client import connect
from ..sinks.clickhouse.writer import ClickHouseWriter
from ..sinks.kafka.letter_writer import DeadLetterWriter
from ..sinks.parquet.files import open_directory
from ..sinks.parquet.writer import ParquetWriter
from .delivered import LETTER, Delivered, delivered_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..mapping.results import MapResult
    from ..memory.window import Window
    from ..reducers.reducer import Reducer
    from ..strategy import Strategy
    from .delivered import Counts


def require_countable(strategy: Strategy) -> None:
    """Raise StrategyError unless a storm can tell what became of each record of a strategy with a window."""
    window = strategy.window
    if window is None:
        return
    if window.session is not None or window.every != window.length or window.late != "dead-letter":
        raise StrategyError(
            "kmr chaos: each record has to be in one window or in reduce_err, so it tries windows that "
            "do not overlap, with late='dead-letter'; kmr simulate tries the others"
        )
    if window.idle is None:
        raise StrategyError(
            "kmr chaos: the storm ends when everything is committed: set idle= in the Window, so that the "
            "last windows close"
        )
    if strategy.by_topic is not None and len(strategy.by_topic) > 1:
        raise StrategyError("kmr chaos: rows of windows do not name their topic; read one topic")


class WindowsDelivered(Delivered):
    """The rows of windows in a sink; `count` finds how many windows each record is in."""

    def __init__(
        self, inner: Delivered, writer: Reducer, partitions: Sequence[TopicPartition]
    ) -> None:
        super().__init__(writer, partitions)
        self._inner = inner

    @property
    def place(self) -> str:
        return self._inner.place

    def prepare(self, declared: pa.Schema | None) -> None:
        self._inner.prepare(declared)

    def _count(self) -> Counts:
        self.rows = self._read().to_pylist()
        return records_of(self.rows, self._topics[0])

    def _read(self) -> pa.Table:
        writer: Any = self._writer
        if isinstance(writer, ParquetWriter):
            place = open_directory(writer.url)
            if place.schema() is None:
                return pa.table({})
            found: Any = ds.dataset(
                place.root, filesystem=place.filesystem, format="parquet", partitioning="hive"
            )
            table: pa.Table = found.to_table()
            return table
        target, name = writer.target()
        where = f"{quote_identifier(target.database)}.{quote_identifier(name)}"
        with connect(target) as client:
            if not int(str(client.command(f"EXISTS TABLE {where}"))):
                return pa.table({})
            return client.query_arrow(f"SELECT * FROM {where}")  # noqa: S608  a quoted name


class _LettersInTable(WindowsDelivered):
    """The letters in a table; `rows` are those that letters of rows are of."""

    def _count(self) -> Counts:
        counts: Counts = Counter()
        for row in self._read().to_pylist():
            if not {"headers", "value"} <= row.keys():
                raise SinkError(
                    f"{self.place}: it has no columns headers and value, by which kmr chaos tells "
                    "letters of rows from those of records"
                )
            headers = {pair["key"]: pair["value"] for pair in row["headers"] or ()}
            place = {name: row[name] for name in OFFSET_COLUMNS}
            letter = self._letter(place, headers, row["value"])
            if LETTER in letter:
                self.rows.append(letter)
            else:
                counts[TopicPartition(row["topic"], row["partition"]), row["offset"]] += 1
        return counts


def records_of(rows: Iterable[Mapping[str, Any]], topic: str) -> Counts:
    """Count the rows of windows that each record is in."""
    counts: Counts = Counter()
    for row in rows:
        at = TopicPartition(topic, row["partition"])
        counts.update((at, offset) for offset in row[OFFSETS])
    return counts


def errors_of(strategy: Strategy, partitions: Sequence[TopicPartition]) -> Delivered | None:
    """Return how to count what `reduce_err` has; None if it cannot be read.

    Raises:
        StrategyError: the strategy has a window, and letters of its rows cannot be read there.
    """
    writer = strategy.reduce_err
    found = delivered_by(writer, partitions)
    if strategy.window is None or isinstance(writer, DeadLetterWriter):
        return found
    if found is None or not isinstance(writer, ClickHouseWriter | ParquetWriter):
        raise StrategyError(
            "kmr chaos: late records, and rows that the sink refuses, are looked for in reduce_err: let it "
            "be a DeadLetterWriter, ClickHouseWriter or ParquetWriter"
        )
    return _LettersInTable(found, writer, partitions)


def sink_of(
    strategy: Strategy, writer: Reducer, partitions: Sequence[TopicPartition]
) -> Delivered | None:
    """Return how to count what a sink of a strategy has; None if it cannot be read."""
    found = delivered_by(writer, partitions)
    if strategy.window is None or found is None:
        return found
    if not isinstance(writer, ClickHouseWriter | ParquetWriter):
        raise StrategyError(
            f"kmr chaos: rows of windows are counted in ClickHouse and in Parquet files, not where "
            f"{type(writer).__name__} writes"
        )
    return WindowsDelivered(found, writer, partitions)


def wrong_windows(
    window: Window,
    mapped: Iterable[tuple[Batch, MapResult]],
    rows: Iterable[Mapping[str, Any]],
    errors: Counts,
    *,
    once: bool,
) -> dict[str, list[str]]:
    """Return the wrong windows, by their fault.

    Args:
        mapped: the records of the topic, and what the map makes of them.
        rows: those in the sink, and those of letters, which have the name of the letter as `LETTER`.
        errors: the records in `reduce_err`, without those of the letters of rows.
        once: no row may be there twice.
    """
    found = {
        at.partition: (at, WindowOutcomes(model, once=once))
        for at, model in _models(window, mapped).items()
    }
    wrong: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        at, outcomes = found[row["partition"]]
        faults = outcomes.add(row, row.get(LETTER))
        if once and any((at, offset) in errors for offset in row[OFFSETS]):
            faults["a record is in a window and in reduce_err"] = (
                f"the window {row['window_start']}"
            )
        for fault, shown in faults.items():
            wrong[fault].append(f"{at}: {shown}")
    return wrong


def _models(
    window: Window, mapped: Iterable[tuple[Batch, MapResult]]
) -> dict[TopicPartition, WindowsOfLog]:
    parts: dict[TopicPartition, list[tuple[Batch, MapResult]]] = defaultdict(list)
    for batch, result in mapped:
        parts[batch.topic_partition].append((batch, result))
    return {at: WindowsOfLog(window, found) for at, found in parts.items()}
