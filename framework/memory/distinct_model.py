"""What `Distinct` lets pass of a log, in plain Python: simulations and storms compare a worker with it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..mapping.results import NO_OFFSETS
from ..tagged_rows import rows_by_branch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from ..mapping.results import MapResult
    from ..record import Batch, TopicPartition
    from .distinct import Distinct

_MICROSECOND: Final = timedelta(microseconds=1)


def without_duplicates(
    distincts: Mapping[str, Distinct], mapped: Iterable[tuple[Batch, MapResult]]
) -> Iterator[tuple[Batch, MapResult]]:
    """Take the duplicates out of what the map makes of logs, in the order of their offsets.

    Args:
        distincts: by the names of their branches, "" without branches.
    """
    seen: dict[tuple[TopicPartition, str], tuple[dict[Any, Any], list[Any]]] = {}
    for batch, result in mapped:
        if result.table is None or not distincts:
            yield batch, result
            continue
        kept = np.ones(result.table.num_rows, np.bool_)
        for name, rows, places in rows_by_branch(result.table):
            if name in distincts:
                last, reached = seen.setdefault((batch.topic_partition, name), ({}, [None]))
                kept[places] = _passing(
                    distincts[name], batch, rows, result.offsets[places], last, reached
                )
        table = result.table.take(np.flatnonzero(kept)) if kept.any() else None
        offsets = result.offsets[kept] if kept.any() else NO_OFFSETS
        yield batch, replace(result, table=table, offsets=offsets, places=None)


def _passing(
    distinct: Distinct,
    batch: Batch,
    rows: pa.Table,
    offsets: Any,
    last: dict[Any, Any],
    reached: list[Any],
) -> list[bool]:
    """Return which rows pass.

    Args:
        last: when each key was seen last.
        reached: the event time, in a list of one.
    """
    column = batch.records.column("timestamp")
    of_records = dict(zip(batch.offsets().tolist(), column.to_pylist(), strict=True))
    passing = []
    for offset, row in zip(offsets.tolist(), rows.to_pylist(), strict=True):
        time = of_records[offset] if distinct.time is None else row[distinct.time]
        if time is not None and (reached[0] is None or time > reached[0]):
            reached[0] = time
        key = tuple(row[name] for name in distinct.key)
        before = last.get(key)
        passing.append(
            None in key
            or key not in last
            or (before is None) != (reached[0] is None)
            or (
                before is not None
                and (reached[0] - before) // _MICROSECOND >= distinct.microseconds
            )
        )
        last[key] = reached[0]
    return passing
