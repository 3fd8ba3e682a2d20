"""One map of the batches of several partitions that have little: one call of a thread, one decoding.

The results are those of one map for each batch. A per-record function is called in one loop over all
records, and the columns of its rows are made once and sliced. A per-batch function is called once if it may
be (`MapSpec.across`). Where that could make a difference (rows that have other columns or types than those of
another partition, a batch that cannot be decoded) each batch is converted by itself.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ..errors import StrategyError
from ..formats.batch_decoder import decode_together
from ..record import ROW_OVERHEAD, TIME_COLUMNS
from ..values.registry.registry import RegistryUnavailable
from .collecting import CollectedRows
from .functions import apply
from .results import NO_OFFSETS, Failure, MapResult, bytes_made, from_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ..record import Batch
    from .functions import MapSpec
    from .stop import Stop

_KINDS: Final[dict[type, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
}
"""The classes of values that have the same type in every batch."""


def can_share(spec: MapSpec) -> bool:
    """Return whether a map may be one of `Together`: a plain function, each call of which is made once."""
    return not spec.is_async and spec.calls is None and spec.per != "result"


class MappedBatch(NamedTuple):
    """The outcome of one batch.

    Attributes:
        result: what `kmr.mapping.functions.apply` returns.
        records: how many records were mapped.
        made: bytes of rows (`bytes_made`).
        row_bytes: the size of the rows; None if it was not computed.
    """

    result: MapResult
    records: int
    made: int
    row_bytes: int | None = None


class Together:
    """The map of some batches of one topic, in the order in which they are given.

    `work` runs in a thread. If the map of a batch takes long, `detach` divides the work: the thread goes on
    with that batch alone, `finish` makes the results of those before it, and those after it are not mapped.
    If no map has begun, because decoding takes long, none is mapped here.

    Args:
        stop: ends per-record maps before their next record.

    Attributes:
        outcomes: of each batch, what was mapped or the error that ends the worker; None: not mapped here.
    """

    def __init__(
        self,
        function: Callable[..., Any] | None,
        spec: MapSpec,
        batches: Sequence[Batch],
        stop: Stop,
    ) -> None:
        self.batches = batches
        self.outcomes: list[MappedBatch | Exception | None] = [None] * len(batches)
        self._function = function
        self._spec = spec
        self._stop = stop
        self._lock = threading.Lock()
        self._at = -1  # the batch whose map is under way
        self._detached = False
        self._joined: pa.RecordBatch | None = None
        self._starts: NDArray[np.int64] = NO_OFFSETS  # of the batches, in the joined records
        self._collected = CollectedRows(
            spec.row_type
        )  # its numbers are those in the joined records
        self._row_starts: list[int] = []
        self._failures: list[list[Failure]] = [[] for _ in batches]
        self._rests: dict[int, int] = {}

    @property
    def at(self) -> int:
        """The number of the batch whose map is under way; -1 before the first, their number at the end."""
        return self._at

    def detach(self) -> int:
        """Let `work` end after the batch whose map is under way.

        Returns:
            Its number; -1 if no map has begun, and none will; the number of batches if all have ended, or
            if one call maps them.
        """
        with self._lock:
            self._detached = self._at < len(self.batches)
            return self._at

    def finish(self, end: int) -> None:
        """Make the results of the batches before number `end`, at which it was detached."""
        if self._joined is not None:
            self._convert(0, end)

    def work(self) -> None:
        """Map all batches, or as many as `detach` leaves."""
        try:
            decoded = decode_together(self.batches) if len(self.batches) > 1 else None
            if decoded is not None:
                joined, counts = decoded
                self._starts = np.concatenate([[0], np.cumsum(counts)])
                times = joined.select(TIME_COLUMNS)
                for batch, start, count in zip(self.batches, self._starts, counts, strict=False):
                    batch.keep_times(times.slice(int(start), int(count)))
                if self._spec.branching is None and (
                    self._spec.per != "batch" or self._spec.across
                ):
                    self._joined = joined
                    self._map_joined(joined)
                    return
                each = [
                    joined.slice(int(start), int(count))
                    for start, count in zip(self._starts, counts, strict=False)
                ]
                self._map_each(each)
                return
            self._map_each(None)
        except RegistryUnavailable:  # before any call: the stages of the partitions wait for it
            self._leave(0)
        finally:
            with self._lock:
                self._at = len(self.batches)

    def _begin(self, number: int) -> bool:
        with self._lock:
            if self._detached:
                return False
            self._row_starts.append(len(self._collected.rows))
            self._at = number
            return True

    def _map_each(self, records: list[pa.RecordBatch] | None) -> None:
        for number, batch in enumerate(self.batches):
            if not self._begin(number):
                return
            try:
                mine = batch.records if records is None else records[number]
                result = apply(self._function, mine, self._spec, self._stop)
                made = bytes_made(batch, result, mine)
                count = len(mine) if result.rest is None else _below(mine, result.rest)
                self.outcomes[number] = MappedBatch(result, count, made)
            except RegistryUnavailable:
                self._leave(number)
                return
            except Exception as error:  # noqa: BLE001  the stage of the partition raises it
                self.outcomes[number] = error
                return

    def _map_joined(self, joined: pa.RecordBatch) -> None:
        numbered = _numbered(joined)
        if self._function is None or self._spec.per == "batch":
            self._map_at_once(joined, numbered)
            return
        arguments = self._spec.inputs.arguments(joined, numbered, later=True)
        for failure in arguments.failures:
            self._fail(failure)
        offsets = joined.column("offset").to_numpy().tolist()
        bounds = np.searchsorted(arguments.offsets, self._starts).tolist()
        call = self._spec.caller(self._function)
        beside = arguments.records
        for number in range(len(self.batches)):
            if not self._begin(number):
                break
            start, stop = bounds[number], bounds[number + 1]
            pending = arguments.first[start:stop]
            self._stop.watch(pending)
            lists = (pending,) if beside is None else (pending, beside[start:stop])
            try:
                done = self._collected.call_each(
                    call, lists, arguments.offsets[start:stop], arguments.decoding
                )
            except StrategyError as error:
                self.outcomes[number] = error
                with self._lock:
                    begun = self._at if self._detached else 0
                self._convert(begun, number)
                return
            for failure in self._collected.failures:
                self._fail(failure)
            self._collected.failures.clear()
            if done < stop - start:
                self._rests[number] = int(offsets[arguments.offsets[start + done]])
                if not done:
                    self._rests[number] = self.batches[number].first
        self._stop.ended()
        with self._lock:
            begun, end = (self._at if self._detached else 0), self._at + 1
            self._at = len(self.batches)
        self._convert(max(begun, 0), end)

    def _map_at_once(self, joined: pa.RecordBatch, numbered: pa.RecordBatch) -> None:
        if self._stop.requested:
            self._leave(0)
            return
        # Decoding can be left to the partitions; a call of the user's function cannot be made twice.
        if self._function is not None and not self._begin_all():
            return
        mapped = apply(self._function, joined, self._spec, numbered=numbered)
        if self._function is None and not self._begin_all():
            return
        self._divide(mapped, 0, len(self.batches))

    def _begin_all(self) -> bool:
        with self._lock:
            if self._detached:
                return False
            self._at = len(self.batches)
            return True

    def _fail(self, failure: Failure) -> None:
        """Note a failure, whose offset is a number among the joined records."""
        assert self._joined is not None  # noqa: S101  only joined records have numbers
        offset = self._joined.column("offset")[failure.offset].as_py()
        batch = bisect_right(self._starts, failure.offset) - 1
        self._failures[batch].append(failure._replace(offset=offset))

    def _leave(self, begin: int) -> None:
        """Leave the batches from number `begin` on to the stages of their partitions."""
        for number, batch in enumerate(self.batches[begin:], begin):
            self.outcomes[number] = MappedBatch(MapResult(None, NO_OFFSETS, rest=batch.first), 0, 0)

    def _convert(self, begin: int, end: int) -> None:
        """Make columns of the rows of some batches: of all together if that makes no difference."""
        if begin >= end:
            return
        schema, stored = self._spec.row_type or self._spec.schema, self._spec.sink_types.get("", {})
        starts = [*self._row_starts[:end], len(self._collected.rows)]
        if end < len(self._row_starts):
            starts[end] = self._row_starts[end]
        rows = self._collected.rows[starts[begin] : starts[end]]
        numbers = self._collected.numbers[starts[begin] : starts[end]]
        try:
            if schema is not None or _alike(rows):
                mapped = from_rows(schema, rows, numbers, [], stored)
                if schema is not None or _is_usual(mapped):
                    self._divide(mapped, begin, end)
                    return
        except Exception:  # noqa: BLE001, S110  the batch that it is of raises it again
            pass
        for number in range(begin, end):
            mine = slice(starts[number], starts[number + 1])
            try:
                rows, numbers = self._collected.rows[mine], self._collected.numbers[mine]
                one = from_rows(schema, rows, numbers, [], stored)
            except Exception as error:  # noqa: BLE001
                self.outcomes[number] = error
            else:
                self._divide(one, number, number + 1)

    def _divide(self, mapped: MapResult, begin: int, end: int) -> None:
        """Give each batch its part of the rows of some batches, whose offsets are numbers."""
        joined, table = self._joined, mapped.table
        assert joined is not None  # noqa: S101
        for failure in mapped.failures:
            self._fail(failure)
        offsets = joined.column("offset").to_numpy()[mapped.offsets]
        bounds = np.searchsorted(mapped.offsets, self._starts[begin : end + 1]).tolist()
        size, rows = 0 if table is None else table.nbytes, max(1, len(offsets))
        spec = self._spec
        inferred = spec.per == "record" and spec.schema is None and spec.row_class is None
        joins = inferred and end - begin > 1
        nulls = _with_nulls(table) if table is not None and joins else []
        made = 0 if table is None else int(table.get_total_buffer_size()) + offsets.nbytes
        pieces = sum(joined.column(name).nbytes for name in ("key", "value", "headers"))
        records = max(1, len(joined))
        each = (pieces + ROW_OVERHEAD * records) / records
        for number in range(begin, end):
            batch, at = self.batches[number], number - begin
            first, last = bounds[at], bounds[at + 1]
            mine = None
            if table is not None and first < last:
                mine = table.slice(first, last - first)
                if nulls:
                    mine = _untyped(mine, nulls)
            count = int(self._starts[number + 1] - self._starts[number])
            failures = self._failures[number]
            rest = self._rests.get(number)
            more = max(0, int(each * count) - batch.nbytes)
            if rest is not None:
                mapped_here = joined.slice(int(self._starts[number]), count)
                count = _below(mapped_here, rest)
                failures = [failure for failure in failures if failure.offset < rest]
            if len(failures) > 1:
                failures.sort()
            result = MapResult(mine, offsets[first:last], tuple(failures), rest)
            share = (last - first) / rows
            self.outcomes[number] = MappedBatch(
                result, count, more + int(made * share), int(size * share)
            )


def _numbered(joined: pa.RecordBatch) -> pa.RecordBatch:
    """Return the records with their numbers in the place of their offsets."""
    at = joined.schema.get_field_index("offset")
    columns = list(joined.columns)
    columns[at] = pa.array(np.arange(len(joined), dtype=np.int64))
    return pa.RecordBatch.from_arrays(columns, schema=joined.schema)


def _below(records: pa.RecordBatch, offset: int) -> int:
    """Return how many records are below an offset."""
    return int(np.searchsorted(records.column("offset").to_numpy(), offset))


def _alike(rows: list[Any]) -> bool:
    """Return whether all rows have the same columns, each with values of one class (or None)."""
    if not rows or set(map(type, rows)) != {dict} or set(map(len, rows)) != {len(rows[0])}:
        return not rows
    for name in rows[0]:
        try:
            classes = set(map(type, map(itemgetter(name), rows)))
        except KeyError:
            return False
        classes.discard(type(None))
        if len(classes) > 1 or not classes <= _KINDS.keys():
            return False
    return True


def _is_usual(mapped: MapResult) -> bool:
    """Return whether the types that were inferred are those of any part of the rows."""
    if mapped.failures:
        return False
    usual = {*_KINDS.values(), pa.null()}
    return mapped.table is None or all(kind in usual for kind in mapped.table.schema.types)


def _with_nulls(table: pa.Table) -> list[str]:
    return [
        field.name
        for field, column in zip(table.schema, table.columns, strict=True)
        if column.null_count and not pa.types.is_null(field.type)
    ]


def _untyped(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return a part of the rows with the types that it has alone: a column of nulls has none."""
    for name in names:
        at = table.schema.get_field_index(name)
        if table.column(at).null_count == len(table):
            table = table.set_column(at, name, pa.nulls(len(table)))
    return table
