"""Event times that no record can have: a single one far in the future would close, or forget, everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from ..record import Batch


def far_ahead(
    times: NDArray[np.int64],
    batches: Iterable[Batch],
    record_times: Callable[[], pa.Array[Any] | pa.ChunkedArray[Any]],
    ahead: int,
) -> NDArray[np.bool_]:
    """Return which rows have an event time that is too much later than the timestamp of their record.

    It follows from the records alone, so that a second reading decides the same. A timestamp of no clock (of
    type -1, or up to 1970) tells nothing.

    Args:
        times: event times, in microseconds since 1970.
        batches: the records of the rows.
        record_times: the timestamps of the rows' records; called only if a time is ahead of the earliest one.
        ahead: how much later is too much, in microseconds.
    """
    lowest = min(map(_lowest, batches), default=-1)
    if not len(times) or lowest < 0 or times.max() - ahead <= lowest:
        return np.zeros(len(times), np.bool_)
    recorded = record_times().cast(pa.int64()).to_numpy()
    far: NDArray[np.bool_] = (recorded > 0) & (times - ahead > recorded)
    return far


def _lowest(batch: Batch) -> int:
    """Return the earliest timestamp of some records; -1 if they are of no clock, or there is none."""
    kind = pc.min(batch.records.column("timestampType")).as_py()
    earliest = pc.min(batch.records.column("timestamp")).cast(pa.int64()).as_py()
    return -1 if kind is None or kind < 0 or earliest is None else int(earliest)
