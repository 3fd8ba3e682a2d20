"""What happened in a run, as Arrow tables: the only thing that checkers, report and timeline look at.

Every time is in nanoseconds since the epoch, by the clock of this machine.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import feather

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

Outcome = Literal["acked", "aborted", "unknown", "lost"]
"""Of a record; `aborted`: with its transaction; `lost`: acknowledged, and not in its log any more."""

Ending = Literal["running", "stopped", "late", "killed", "died", "refused"]
"""Of a process: still running; ended by our SIGTERM, or by it at its deadline; by our SIGKILL; without a
signal of ours; or with a message that says what to do, as it had to."""


def _schema(text: str = "", number: str = "", **others: pa.DataType) -> pa.Schema:
    columns: dict[str, pa.DataType] = dict.fromkeys(text.split(), pa.string())
    columns |= dict.fromkeys(number.split(), pa.int64())
    return pa.schema(list((columns | others).items()))


SCHEMAS: dict[str, pa.Schema] = {
    # One line per record; the offset is null unless it is known.
    "produced": _schema("topic outcome", "partition offset id time", poison=pa.bool_()),
    # The rows of the sink at the end, by group; `time` is the start of their INSERT.
    "rows": _schema("group topic", "partition offset id time"),
    # The rows of windows; times are in microseconds, those of the first and the last record too.
    # `letter`: the table has refused the row, and it is in the error sink.
    "windows": _schema("group topic", "partition bucket start end first last", letter=pa.bool_()),
    # The records that the error sink received.
    "dead": _schema("group topic", "partition offset time"),
    # Committed offsets as the broker showed them at `time`.
    "commits": _schema("group topic", "partition offset time"),
    "memory": _schema("process", "bytes time"),
    # What each process holds, in a soak; `tasks` is null where nothing counts them.
    "resources": _schema("process", "time rss pss descriptors threads tasks"),
    # One line per process; `ended` and `code` are null while it runs.
    "processes": _schema("name ending", "pid started ended code", ready=pa.bool_()),
    # The course of the run: phases, faults (from `time` to `until`), observations.
    "events": _schema("kind name detail", "time until"),
}


@dataclass(frozen=True)
class History:
    """The tables of one run; `SCHEMAS` has their columns.

    Attributes:
        unread: tables that could not be read, as `table/group`, and why: what depends on them is
            unknown.
    """

    produced: pa.Table
    rows: pa.Table
    windows: pa.Table
    dead: pa.Table
    commits: pa.Table
    memory: pa.Table
    resources: pa.Table
    processes: pa.Table
    events: pa.Table
    unread: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tables: Mapping[str, Sequence[Mapping[str, Any]] | pa.Table],
        unread: Mapping[str, str] | None = None,
    ) -> History:
        """A history from tables, or from lists of lines; missing tables are empty."""
        made = {}
        for name, schema in SCHEMAS.items():
            table = tables.get(name, [])
            if not isinstance(table, pa.Table):
                table = pa.Table.from_pylist([dict(line) for line in table], schema=schema)
            made[name] = table.select(schema.names).cast(schema)
        return cls(**made, unread=dict(unread or {}))

    def group(self, table: str, group: str) -> pa.Table:
        """The lines of a table that belong to one group."""
        return where(getattr(self, table), "group", group)

    def last_ids(self) -> set[int]:
        """Return the id of the last good record of each partition."""
        good = self.produced.filter((pc.field("outcome") == "acked") & ~pc.field("poison"))
        groups = good.sort_by("offset").group_by(["topic", "partition"], use_threads=False)
        ids: list[Any] = groups.aggregate([("id", "last")])["id_last"].to_pylist()
        return set(ids)

    def save(self, directory: Path) -> None:
        """Write every table as an Arrow file."""
        directory.mkdir(parents=True, exist_ok=True)
        for part in fields(self):
            if part.name in SCHEMAS:
                feather.write_feather(
                    getattr(self, part.name), directory / f"{part.name}.arrow", compression="zstd"
                )

    @classmethod
    def load(cls, directory: Path) -> History:
        """What `save` wrote; checkers can be run again on it."""
        return cls.of({name: feather.read_table(directory / f"{name}.arrow") for name in SCHEMAS})


class Recorder:
    """Takes down what happens while it happens."""

    def __init__(self) -> None:
        self._tables: dict[str, list[pa.Table]] = defaultdict(list)
        self._lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._unread: dict[str, str] = {}
        self.acknowledged: dict[str, dict[int, int]] = {}
        """By topic and partition: the offset after the last record that was acknowledged."""

    def table(self, name: str, table: pa.Table) -> None:
        """Add many lines at once."""
        self._tables[name].append(table.select(SCHEMAS[name].names).cast(SCHEMAS[name]))

    def line(self, table: str, **values: object) -> dict[str, Any]:
        """Add one line, at this moment unless it has a time; returns it, so that it can be completed."""
        line: dict[str, Any] = {"time": time.time_ns(), **values}
        self._lines[table].append(line)
        return line

    def event(self, kind: str, name: str, detail: str = "") -> dict[str, Any]:
        """Add an event; set its `until` when it is over."""
        return self.line("events", kind=kind, name=name, detail=detail, until=None)

    def forget(self, table: str, group: str) -> None:
        """Drop the lines of a group so far."""
        self._lines[table] = [line for line in self._lines[table] if line["group"] != group]

    def lose(self, topic: str, partition: int, end: int) -> int:
        """Note that a log has lost what it had from an offset on; return how many records."""
        count = 0
        here = (pc.field("topic") == topic) & (pc.field("partition") == partition)
        for number, table in enumerate(self._tables["produced"]):
            gone = table.filter(
                here & (pc.field("offset") >= end) & (pc.field("outcome") == "acked")
            )
            if gone.num_rows:
                stays = table.filter(~pc.field("id").isin(gone["id"]))
                lost = pa.repeat(pa.scalar("lost"), gone.num_rows)
                at = table.schema.get_field_index("outcome")
                gone = gone.set_column(at, "outcome", lost)
                self._tables["produced"][number] = pa.concat_tables([stays, gone])
                count += gone.num_rows
        ends = self.acknowledged.get(topic, {})
        ends[partition] = min(ends.get(partition, 0), end)
        return count

    def acknowledged_ids(self, topic: str, partition: int, first: int, end: int) -> set[int]:
        """Return the ids of the records that a log has from `first` on, below `end`."""
        known = pa.concat_tables(self._tables["produced"])
        found = known.filter(
            (pc.field("topic") == topic)
            & (pc.field("partition") == partition)
            & (pc.field("offset") >= first)
            & (pc.field("offset") < end)
            & (pc.field("outcome") == "acked")
        )
        return set(found["id"].to_numpy().tolist())

    def unread(self, name: str, reason: str) -> None:
        """A table could not be read."""
        self._unread[name] = reason

    def produced(
        self,
        topic: str,
        partition: int,
        first: int | None,
        ids: range,
        outcome: Outcome,
        poison: Iterable[int] = (),
    ) -> None:
        """Records of one batch: with the offset of its first record if they were acknowledged."""
        count, bad = len(ids), set(poison)
        offsets = [None] * count if first is None else list(range(first, first + count))
        self.records(topic, [partition] * count, offsets, list(ids), outcome, bad)

    def records(
        self,
        topic: str,
        partitions: Sequence[int],
        offsets: Sequence[int | None],
        ids: Sequence[int],
        outcome: Outcome,
        poison: set[int],
    ) -> None:
        """Records one by one."""
        count = len(ids)
        self.table(
            "produced",
            pa.table(
                {
                    "topic": [topic] * count,
                    "partition": pa.array(partitions, pa.int64()),
                    "offset": pa.array(offsets, pa.int64()),
                    "id": pa.array(ids, pa.int64()),
                    "outcome": [outcome] * count,
                    "poison": pa.array([number in poison for number in ids], pa.bool_()),
                    "time": pa.array([time.time_ns()] * count, pa.int64()),
                }
            ),
        )
        if outcome == "acked":
            ends = self.acknowledged.setdefault(topic, {})
            for partition, offset in zip(partitions, offsets, strict=True):
                if offset is not None:
                    ends[partition] = max(ends.get(partition, 0), offset + 1)

    def history(self) -> History:
        """Everything so far."""
        tables = {
            name: pa.concat_tables(
                [
                    *self._tables[name],
                    pa.Table.from_pylist(self._lines[name], schema=schema),
                ]
            )
            for name, schema in SCHEMAS.items()
        }
        return History.of(tables, self._unread)


def where(table: pa.Table, column: str, value: str | int) -> pa.Table:
    """The lines of a table with this value."""
    return table.filter(pc.field(column) == pc.scalar(value))
