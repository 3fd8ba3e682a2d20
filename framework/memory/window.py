"""Windows by event time: `Window`, as a strategy names it before its sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from ..columns.kinds import without_rows
from ..config.schema import Duration, parse_duration
from ..delivery.announcement import NOTHING_CLOSED
from ..errors import StrategyError, require_columns
from ..record import COORDINATES, Rows
from ..reducers.aggregate import ALL, AggregateFunction, sources_and_functions
from ..reducers.collect import Collecting
from ..reducers.grouping import has_function
from ..reducers.sink import RowsRefused, refusals_among
from .session_state import SessionState
from .window_aggregates import LAST_OFFSET, Aggregates
from .window_functions import WindowFunction, has_quantiles, quantile_of
from .window_rows import of_closed, split_late
from .window_state import WindowState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ..delivery.announcement import Closed
    from ..record import TopicPartition
    from ..reducers.sink import Refusal

Late = Literal["drop", "dead-letter", "reemit"]

MICROS: Final = 1_000_000
_MOST_HOPS: Final = 1000
_LONGEST: Final = 10 * 365 * 86_400 * MICROS
_MARK_INTERVAL: Final = 4.0


class Window(Collecting):
    """Aggregates rows by windows of event time; a window's rows come out once, when it closes.

    It stands directly before the sink of a list of reducers. Each partition has its own event time: the
    highest `time` of its rows so far, in the order of their offsets. A window closes when that passes its end
    by `lateness`; then one row for each group goes to the sink, with `window_start` and `window_end`.

    No state is stored: the committed offset stays at the first record of the lowest open window, and a worker
    that starts reads from there. With a sink that is exactly once, each row is written exactly once.

    Example:
        ```python
        from datetime import datetime

        import msgspec

        from kmr import Json, Strategy, Window
        from kmr.sinks import ClickHouseWriter

        class Hit(msgspec.Struct):
            ts: datetime
            path: str
            ms: int

        window = Window(
            "1m", time="ts", by=["path"], columns={"hits": ("*", "count"), "ms": ("ms", "mean")},
            lateness="10s", late="drop", idle="30s",
        )
        strategy = Strategy(value=Json(Hit), reduce=[window, ClickHouseWriter("hits_per_minute")])
        ```

    Args:
        length: of a window, `"1m"`, `"30s"` or seconds. Windows begin at multiples of it since 1970, UTC.
        time: the column of event times, a timestamp; `"timestamp"` is the record's own where rows have no
            such column. A record whose time is null or before 1970 fails.
        late: what happens to a row when all of its windows have closed: `drop` counts it
            (`kmr_late_rows_total`); `dead-letter` sends its record to `reduce_err`, unless other rows of the
            same record are in time: then it is dropped, because a replay of the letter would double those;
            `reemit` writes the row of its group once more, complete: for a sink with `changes=True`.
        by: the columns that make a group; empty: one row for each window.
        columns: for each new column its source and the function, as for `Aggregate`: sum, count, min, max,
            mean (a float64), count_distinct, first, last or list; `p95`, or any other quantile from `p0` to
            `p99.99`, which is wrong by at most 1 % of itself (a float64); or a `Window.Function`.
        every: a window begins every so often, and windows overlap (hopping windows); `length` is a multiple
            of it. None: every `length` (tumbling windows).
        session: in place of a length: the rows of a group are in one window while less than this time is
            between two of them. It ends so long after its last row. Its rows are kept until it closes.
        max: how long a session is at most; a longer one is cut at multiples of it since 1970.
        ahead: a record whose time is so much later than its own timestamp fails: one such time would close
            all windows, and what follows would be late. A record without a timestamp is not checked. None:
            any time is taken.
        lateness: how far event times may be out of order: windows stay open for so much longer. A row that
            is further back than this is late for a session, whichever sessions are open.
        idle: when a partition has had no record for so long, the wall clock moves its event time on, so that
            its windows close. None: they stay open until the next record.
        correct: with `late="reemit"`: for how long after it has closed late rows correct a window. Later ones
            are dropped. The records of the window are held for so long.
        keyed: the topic is partitioned by `by`: each group is in one partition, so its rows are final. False:
            a group may be in several partitions, so rows are partial, and have a column `partition`.

    Attributes:
        Function: the base class of functions of one's own, `WindowFunction`.

    Raises:
        StrategyError: an argument is not allowed.
    """

    Function: TypeAlias = WindowFunction

    def __init__(
        self,
        length: Duration | None = None,
        *,
        time: str,
        late: Late,
        columns: Mapping[str, tuple[str, str | WindowFunction]],
        by: Sequence[str] = (),
        every: Duration | None = None,
        session: Duration | None = None,
        max: Duration | None = None,  # noqa: A002  what users call it
        ahead: Duration | None = "1d",
        lateness: Duration = 0,
        idle: Duration | None = None,
        correct: Duration | None = None,
        keyed: bool = False,
    ) -> None:
        super().__init__(max_rows=None, max_bytes=None, max_age=_MARK_INTERVAL)
        self.late = late
        if not columns:
            raise StrategyError(
                'Window: columns is empty; count rows with {"rows": ("*", "count")}'
            )
        self.session = None if session is None else _micros("session", session)
        longest = _longest(length, session, every, max)
        self.length = _micros("length" if session is None else "max", longest)
        self.every = self.length if every is None else _micros("every", every)
        self.ahead = None if ahead is None else _micros("ahead", ahead)
        self.lateness = _micros("lateness", lateness, zero=True)
        self.idle = None if idle is None else _micros("idle", idle)
        self.correct = 0 if correct is None else _micros("correct", correct)
        self._check_corrections()
        self.time, self.by, self.keyed = time, list(by), keyed
        self.columns = sources_and_functions("Window", columns)
        if self.session is not None and self.session > self.length:
            raise StrategyError(f"Window: max={max!r} is shorter than session={session!r}, the gap")
        if self.length % self.every or self.length // self.every > _MOST_HOPS:
            raise StrategyError(
                f"Window: length must be a multiple of every, at most {_MOST_HOPS} times as long, not "
                f"{length!r} and {every!r}"
            )
        functions = get_args(AggregateFunction)
        for name, (source, function) in self.columns.items():
            is_known = function in functions or quantile_of(function) is not None
            if isinstance(function, WindowFunction):
                is_known = True
            if not is_known or (source == ALL and function != "count"):
                raise StrategyError(
                    f"Window: {name}: there is no function {function!r} of {source!r}; use one of "
                    f"{', '.join(functions)}, p95 or another quantile, or a Window.Function; '*' has "
                    "only count"
                )
        places = ["window_start", "window_end", *([] if keyed else ["partition"])]
        names = [*places, *(each for each in self.by if each != "partition"), *self.columns]
        if clash := {name for name in names if names.count(name) > 1}:
            raise StrategyError(
                f"Window: {sorted(clash)} would be twice among the new columns {names}; rename them"
            )

    @property
    def definition(self) -> str:
        """What the boundaries of windows depend on. It is committed: another definition is refused."""
        if self.session is not None:
            gap, longest = self.session / MICROS, self.length / MICROS
            return f"sessions with gaps of {gap:g}s, at most {longest:g}s, of {self.time}"
        every = "" if self.every == self.length else f" every {self.every / MICROS:g}s"
        return f"{self.length / MICROS:g}s{every} of {self.time}"

    @property
    def invalid_reason(self) -> str:
        """Why a record without a valid time fails."""
        reason = f"{self.time} is null, before 1970, after the year 148107"
        if self.ahead is None:
            return reason.replace(", after", ", or after")
        return f"{reason}, or more than {self.ahead / MICROS:g} s later than the record's timestamp"

    @property
    def late_reason(self) -> str:
        """Why a late record fails."""
        if self.session is not None:
            return f"late: its {self.time} is further back than the lateness"
        return f"late: the windows of its {self.time} have closed"

    @property
    def holds(self) -> int:
        """For how much event time records can be held, in microseconds."""
        return self.lateness + self.correct + self.length * (1 if self.session is None else 3)

    @property
    def key(self) -> list[str]:
        """The columns that name a row: a later row with the same values corrects it."""
        places = [] if self.keyed or "partition" in self.by else ["partition"]
        return ["window_start", *places, *self.by]

    def _check_corrections(self) -> None:
        if (self.late == "reemit") != bool(self.correct):
            raise StrategyError(
                "Window: late='reemit' and correct= go together: correct='1h' is for how long after it has "
                "closed a window is corrected"
            )
        if self.correct and self.session is not None:
            raise StrategyError(
                "Window: late='reemit' is not for sessions: a late row may join two of them, and a corrected "
                "row could not take one of both back; use late='drop' or 'dead-letter', and more lateness"
            )

    def describe(self) -> str:
        """Return the length, what happens to late rows, and whether rows are final, in words."""
        rows = "final: the topic is keyed by the group"
        if not self.keyed:
            rows = "partial, one for each partition (column partition): the table adds them up"
        kept = ""
        if self.session is not None:
            kept = (
                f"; rows of {', '.join(self.sources)} are kept until their session is over, and records held "
                f"for up to {3 * self.length / MICROS:g}s"
            )
        idle = "" if self.idle is None else f", idle after {self.idle / MICROS:g}s"
        return (
            f"{self.definition}, lateness {self.lateness / MICROS:g}s{idle}, late rows: {self.late}; "
            f"rows are {rows}{kept}"
        )

    @property
    def sources(self) -> list[str]:
        """The columns that rows must have."""
        sources = (source for source, _ in self.columns.values() if source != ALL)
        return list(dict.fromkeys([self.time, *self.by, *sources]))

    def require(self, columns: Sequence[str]) -> None:
        """Raise StrategyError unless all columns that are needed are there."""
        require_columns("Window", self.sources, columns)

    def require_types(self, schema: pa.Schema) -> None:
        """Raise StrategyError unless columns of these types can be grouped and aggregated."""
        for name in self.by:
            if pa.types.is_nested(kind := schema.field(name).type):
                raise StrategyError(
                    f"Window: by={name!r} is {kind}, which makes no groups; make it text or a number "
                    "in the map"
                )
        for name, (source, function) in self.columns.items():
            if source == ALL or isinstance(function, WindowFunction):
                continue
            kind, is_quantile = schema.field(source).type, quantile_of(function) is not None
            if not (has_quantiles(kind) if is_quantile else has_function(kind, function)):
                raise StrategyError(
                    f"Window: {name}: there is no {function} of {source!r}, which is {kind}"
                )

    def aggregates(self, starts: NDArray[np.int64] | None = None) -> Aggregates:
        """Return new, empty aggregates; `starts` as in `Aggregates`."""
        more = {LAST_OFFSET: (LAST_OFFSET, "max")} if self.correct else {}
        return Aggregates(self.by, self.columns | more, starts)

    def state(
        self, partition: TopicPartition | None = None, closed: Closed = NOTHING_CLOSED
    ) -> WindowState:
        """Return the open windows of a partition; `closed` is what the committed offset says of them."""
        if self.session is not None:
            return SessionState(self, partition, closed, self.session, self.length)
        return WindowState(self, partition, closed)

    def rows_of(
        self,
        closed: pa.Table,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        time: pa.DataType,
        partition: TopicPartition | None,
    ) -> pa.Table:
        """Return the rows of closed windows as the sink gets them.

        Args:
            closed: what `Aggregates.take` returned.
            starts: of the window of each row, in microseconds since 1970.
            ends: of the window of each row.
            time: the type of the column of event times.
        """
        zone = getattr(time, "tz", None)
        kind = pa.timestamp("us", tz=zone)
        columns: dict[str, Any] = {
            "window_start": pa.array(starts).cast(kind),
            "window_end": pa.array(ends).cast(kind),
        }
        if not self.keyed and "partition" not in self.by:
            number = 0 if partition is None else partition.partition
            columns["partition"] = pa.array(np.full(len(starts), number, np.int32))
        for name in closed.column_names[1:]:
            columns[name] = closed.column(name)
        if self.correct:
            columns |= _change(columns.pop(LAST_OFFSET))
        return pa.table(columns)

    def schema_after(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the rows that come out, for those that go in. Raises StrategyError."""
        places = COORDINATES.empty_table()
        rows = Rows(schema.empty_table(), (), np.empty(0, np.int64), places=places)
        state = self.state()
        state.take(rows)
        out = state.close_all().schema
        never = {"window_start", "window_end", "partition"}
        never |= {name for name, (_, f) in self.columns.items() if f in ("count", "count_distinct")}
        never |= {field.name for field in schema if field.name in self.by and not field.nullable}
        return pa.schema([field.with_nullable(field.name not in never) for field in out])

    def flush(self) -> pa.Table:
        """Return the rows of all windows of the collected rows, as if all of them closed now.

        A worker does not call it: there, `kmr.window_stage` runs windows. A test of a strategy does.
        """
        states: dict[TopicPartition, WindowState] = {}
        refusals: list[Refusal] = []
        for rows in self.rows:
            partition = rows.ranges[0].topic_partition
            taken = states.setdefault(partition, self.state(partition)).take(rows)
            _, letters = split_late(self, rows, taken.late)
            refusals += refusals_among([rows], {**taken.refused, **letters})
        out = []
        for partition, state in states.items():
            closed, failed = of_closed(state.close_all())
            ranges = tuple(
                r for rows in self.rows for r in rows.ranges if r.topic_partition == partition
            )
            refusals += refusals_among([Rows(closed, ranges)], failed)
            out.append(without_rows(closed, failed))
        if refusals:
            raise RowsRefused(refusals, out=pa.concat_tables(out))
        return pa.concat_tables(out)


def _change(last_offset: pa.ChunkedArray[Any]) -> dict[str, Any]:
    """Return the columns that make rows changes: upserts, in the order of their last offsets."""
    rows = len(last_offset)
    positions = np.zeros((rows, 3), ">u8")
    positions[:, 2] = last_offset.to_numpy()
    buffers: Any = [None, pa.py_buffer(positions.tobytes())]
    position: pa.Array[Any] = pa.Array.from_buffers(pa.binary(24), rows, buffers)
    return {"op": pa.array(["u"] * rows, pa.string()), "position": position}


def _longest(
    length: Duration | None,
    session: Duration | None,
    every: Duration | None,
    longest: Duration | None,
) -> Duration:
    """Return how long a window is at most. Raises StrategyError unless it is one of either kind."""
    if session is None:
        if length is None or longest is not None:
            raise StrategyError(
                'Window: give a length, as in Window("1m", ...), or session= and max= for windows that end '
                "when a group has no row for some time"
            )
        return length
    if length is not None or every is not None:
        raise StrategyError("Window: session= has neither a length nor every=")
    if longest is None:
        raise StrategyError(
            "Window: session= needs max=, the longest time of a session: a group whose rows never pause, "
            "such as a robot's, would keep its session open, hold the committed offset back for ever, and a "
            "start would read everything since then again"
        )
    return longest


def _micros(name: str, given: Duration, *, zero: bool = False) -> int:
    """Return a duration in microseconds. Raises StrategyError."""
    micros = round(parse_duration(given, f"Window: {name}", zero=zero) * MICROS)
    if micros == 0 and not zero:
        raise StrategyError(f"Window: {name} must be above 0, not {given!r}")
    if micros > _LONGEST:
        raise StrategyError(f"Window: {name} must be less than ten years, not {given!r}")
    return micros
