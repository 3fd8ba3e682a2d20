"""The rows of windows after a storm: which records they have, and whether each is in the right one, once."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
from clickhouse_connect.driver.binding import quote_identifier

from ..errors import StrategyError
from ..memory.window_model import OFFSETS, WindowsOfLog
from ..record import Batch, TopicPartition
from ..sinks.clickhouse.client import connect
from ..sinks.clickhouse.writer import ClickHouseWriter
from ..sinks.parquet.files import open_directory
from ..sinks.parquet.writer import ParquetWriter
from .delivered import Delivered, delivered_by

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
        counts: Counts = Counter()
        for row in self.rows:
            at = TopicPartition(self._topics[0], row["partition"])
            counts.update((at, offset) for offset in row[OFFSETS])
        return counts

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
) -> dict[str, list[str]]:
    """Return the wrong windows, by their fault.

    Args:
        mapped: the records of the topic, and what the map makes of them.
    """
    models = {at.partition: (at, model) for at, model in _models(window, mapped).items()}
    wrong: dict[str, list[str]] = defaultdict(list)
    seen: set[tuple[Any, ...]] = set()
    for row in rows:
        at, model = models[row["partition"]]
        moment = pa.scalar(row["window_start"]).cast(pa.timestamp("us"))
        key = (moment.cast(pa.int64()).as_py(), *(row[name] for name in window.by))
        name = f"{at} {row['window_start']} {key[1:]}"
        found = list(row[OFFSETS])
        # The wall clock closes a window before some of its records came: these are in `reduce_err`.
        if found != model.offsets.get(key, [])[: len(found)]:
            wrong["windows have records that are not theirs"].append(name)
        if (at, key) in seen:
            wrong["windows have two rows"].append(name)
        if any((at, offset) in errors for offset in found):
            wrong["records are in a window and in reduce_err"].append(name)
        seen.add((at, key))
    return wrong


def _models(
    window: Window, mapped: Iterable[tuple[Batch, MapResult]]
) -> dict[TopicPartition, WindowsOfLog]:
    parts: dict[TopicPartition, list[tuple[Batch, MapResult]]] = defaultdict(list)
    for batch, result in mapped:
        parts[batch.topic_partition].append((batch, result))
    return {at: WindowsOfLog(window, found) for at, found in parts.items()}
