"""Strategies with every guarantee, and records for them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kmr.mapping.functions import map_record
from kmr.memory.distinct import Distinct
from kmr.memory.window import Window
from kmr.record import Record
from kmr.reducers.collect import Batcher, one_table
from kmr.simulation.loop import SimulationLoop
from kmr.sinks import ClickHouseWriter, KafkaWriter, RangeWriter
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from kmr.sinks import RangeRows


def _repeated(times: Sequence[int]) -> list[Record]:
    return [
        Record("repeated", n % 2, n // 2, None, value, 1_767_225_600_000_000 + at * 1_000_000, 0)
        for n, at in enumerate([30 * turn + at for turn in range(3) for at in times])
        for value in [b"abdadbad"[n * 3 % 8 :][:1]]
    ]


_TIMES: Final = [0, 0, 1, 2, 9, 8, 3, 4, 12, 13, 5, 6, 20, 20, 14, 15]
REPEATED: Final = _repeated(_TIMES)
"""Records with values that come again, some of them late, in two partitions."""

OVERTAKEN: Final = _repeated([7, 6, 5, 5, *_TIMES[4:]])
"""The same, but each partition begins with a record of its second window."""

JOINED: Final = [
    Record("wide", n % 14, n // 14, None, value, 1_767_225_600_000_000, 0)
    for n, value in enumerate([b"row", b"two", b"row", b"skip", b"row", b"poison", b"row"] * 8)
]
"""Records of many partitions, whose lanes wait for a turn."""

RECORDS: Final = [b"row", b"two", b"row", b"row", b"skip", b"row", b"poison", b"row"] * 4


@map_record
def locate(record: Record) -> list[dict[str, int]] | None:
    """Map a record to one row or two; `poison` fails, `skip` is filtered."""
    if record.value == b"poison":
        raise ValueError("poisoned")
    if record.value == b"skip":
        return None
    rows = 2 if record.value == b"two" else 1
    return [{"n": n} for n in range(rows)]


@map_record
def expand(record: Record) -> list[dict[str, object]] | None:
    """Map a record to the rows of `locate`, fifty times, each with some text."""
    rows = locate(record)
    return None if rows is None else [row | {"text": "x" * 20} for row in rows for _ in range(50)]


@map_record
async def wait(record: Record) -> list[dict[str, int]] | None:
    """Map a record as `locate`, after some time, in which its member may be drained."""
    if isinstance(asyncio.get_running_loop(), SimulationLoop):
        await asyncio.sleep(0.2 + 0.4 * (record.offset % 5))
    return locate(record)


@map_record
def divide(record: Record) -> list[tuple[dict[str, int], str]] | None:
    """Map a record to the rows of `locate`, the first in one branch and the second in another."""
    rows = locate(record)
    names = ("first", "second")
    return None if rows is None else [(row, name) for row in rows for name in names]


@map_record
def identify(record: Record) -> dict[str, object]:
    """Map a record to a row with its key and its time."""
    return {"id": None if record.value == b"d" else record.value, "at": record.timestamp}


def mislead(record: Record) -> dict[str, object]:
    """Map a record to a row whose own columns say that it is of another record."""
    return {"topic": record.topic, "partition": 0, "offset": 7, "n": record.offset}


class Ranges(RangeWriter):
    """A sink of ranges; the simulation replaces its methods."""

    def has(self, rows: RangeRows) -> bool:
        raise AssertionError("a simulation has called the real sink")

    def write(self, rows: RangeRows) -> None:
        raise AssertionError("a simulation has called the real sink")


class JoinedRanges(Ranges):
    """A sink of ranges that writes those of several partitions in one transaction."""

    def __init__(self) -> None:
        super().__init__(inserts_per_second=0.25)
        self.capabilities = replace(self.capabilities, joins_rows=1000)

    def may_join(self) -> bool:
        return True


class SlowBatcher(Batcher):
    """Joins rows as `Batcher`, after some time: its flushes overlap with those of the next stage."""

    async def flush(self) -> pa.Table:  # type: ignore[override]
        rows = one_table(self.rows)
        if isinstance(asyncio.get_running_loop(), SimulationLoop):
            await asyncio.sleep(0.3 + 0.8 * (rows.num_rows % 4))
        return rows.combine_chunks()


def _errors() -> MemoryWriter:
    return MemoryWriter(Journal(), max_age=1.0)


def _sessions(gap: float, lateness: float) -> Window:
    return Window(
        session=gap, max=60.0, time="at", by=["id"], columns={"n": ("*", "count")}, lateness=lateness,
        late="dead-letter",
    )  # fmt: skip


def _window(**options: Any) -> Window:
    columns = {"n": ("*", "count")}
    return Window(
        6.0, time="at", by=["id"], columns=columns, lateness=2.0, **({"late": "drop"} | options)
    )


def _chain(last: RangeWriter | MemoryWriter) -> Strategy:
    return Strategy(locate, [MemoryWriter(Journal(), forward=True), last], reduce_err=_errors())


STRATEGIES: Final[Mapping[str, Callable[[], Strategy]]] = {
    "clickhouse": lambda: Strategy(
        locate, [ClickHouseWriter("hits", url="http://localhost:1")], reduce_err=_errors()
    ),
    "batched into clickhouse": lambda: Strategy(
        locate,
        [Batcher(), ClickHouseWriter("hits", url="http://localhost:1")],
        reduce_err=_errors(),
    ),
    "joined into clickhouse": lambda: Strategy(
        locate,
        [ClickHouseWriter("hits", url="http://localhost:1", inserts_per_second=0.25)],
        reduce_err=_errors(),
    ),
    "joined ranges": lambda: Strategy(locate, [JoinedRanges()], reduce_err=_errors()),
    "at least once": lambda: Strategy(locate, [MemoryWriter(Journal())], reduce_err=_errors()),
    "at most once": lambda: Strategy(
        locate, [MemoryWriter(Journal())], reduce_err=_errors(), delivery="at-most-once"
    ),
    "chain of ranges": lambda: _chain(Ranges()),
    "transactions": lambda: Strategy(
        locate, [KafkaWriter("out", delivery="exactly-once")], reduce_err=_errors()
    ),
    "slow chain of ranges": lambda: Strategy(
        locate, [SlowBatcher(), Ranges()], reduce_err=_errors()
    ),
    "slow chain at least once": lambda: Strategy(
        locate, [SlowBatcher(), MemoryWriter(Journal())], reduce_err=_errors()
    ),
    "chain at least once": lambda: _chain(MemoryWriter(Journal())),
    "fan-out into clickhouse": lambda: Strategy(
        expand, [ClickHouseWriter("hits", url="http://localhost:1")], reduce_err=_errors()
    ),
    "fan-out at least once": lambda: Strategy(
        expand, [Batcher(), MemoryWriter(Journal())], reduce_err=_errors()
    ),
    "slow maps into clickhouse": lambda: Strategy(
        wait, [ClickHouseWriter("hits", url="http://localhost:1")], reduce_err=_errors()
    ),
    "slow maps at least once": lambda: Strategy(
        wait, [MemoryWriter(Journal())], reduce_err=_errors()
    ),
    "branches": lambda: Strategy(
        divide,
        {
            "first": ClickHouseWriter("hits", url="http://localhost:1"),
            "second": [Batcher(), Ranges()],
        },
        reduce_err=_errors(),
    ),
    "branches at least once": lambda: Strategy(
        divide,
        {"first": MemoryWriter(Journal()), "second": Ranges()},
        reduce_err=_errors(),
    ),
    "distinct into clickhouse": lambda: Strategy(
        identify, [Distinct("id", 8.0), ClickHouseWriter("hits", url="http://localhost:1")]
    ),
    "distinct chain of ranges": lambda: Strategy(
        identify,
        [
            Distinct(["id"], 8.0, time="at", on_duplicate="dead-letter"),
            MemoryWriter(Journal(), forward=True),
            Ranges(),
        ],
        reduce_err=_errors(),
    ),
    "windows into clickhouse": lambda: Strategy(
        identify,
        [_window(keyed=True), ClickHouseWriter("hits", url="http://localhost:1")],
        reduce_err=_errors(),
    ),
    "windows that overlap": lambda: Strategy(
        identify,
        [Batcher(), _window(every=2.0, late="dead-letter"), Ranges()],
        reduce_err=_errors(),
    ),
    "windows of sessions": lambda: Strategy(
        identify, [_sessions(1.0, 4.0), Ranges()], reduce_err=_errors()
    ),
    "windows of sessions with late rows": lambda: Strategy(
        identify, [_sessions(3.0, 2.0), Ranges()], reduce_err=_errors()
    ),
    "windows of idle partitions": lambda: Strategy(
        identify, [_window(late="dead-letter", idle=3.0), Ranges()], reduce_err=_errors()
    ),
    "windows at least once": lambda: Strategy(
        identify, [_window(), MemoryWriter(Journal())], reduce_err=_errors()
    ),
    "distinct transactions": lambda: Strategy(
        identify, [Distinct("id", 8.0), KafkaWriter("out", delivery="exactly-once")]
    ),
    "distinct at most once": lambda: Strategy(
        identify,
        [Distinct("id", 8.0), MemoryWriter(Journal())],
        reduce_err=_errors(),
        delivery="at-most-once",
    ),
    "distinct at least once": lambda: Strategy(
        identify, [Distinct("id", 8.0), Batcher(), MemoryWriter(Journal())]
    ),
}


def records_of(name: str) -> list[Any]:
    """Return the records for a strategy."""
    if name.startswith("joined"):
        return JOINED
    if name == "windows of idle partitions":
        return OVERTAKEN
    return list(REPEATED if name.startswith(("distinct", "windows")) else RECORDS)
