"""Write a part of a flush; where Spark refuses values, all of it but the rows that they are in.

Spark says that a value cannot be cast, or that a constraint is violated, and not in which row. The part is
halved: each piece has a name of its own, so that a part that is written again has the same pieces.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ..answers import of_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from ..planning import RangeRows

_MOST: Final = 100  # pieces that are refused; each is a job of Spark


def write_pieces(
    part: RangeRows, rows: pa.Table, write: Callable[[RangeRows, pa.Table], Mapping[int, str]]
) -> dict[int, str]:
    """Write rows; return the numbers of those that cannot be written, with the reasons.

    If more than 100 pieces are refused, the smallest ones are as large as they are then: the reason says so.

    Args:
        write: writes all rows, or none if it raises; returns those that do not fit.
    """
    refused: dict[int, str] = {}
    failed = 0
    todo = [(0, rows.num_rows)]
    while todo:
        start, stop = todo.pop()
        size = stop - start
        piece = part if size == rows.num_rows else replace(part, piece=f"{start}-{stop}")
        try:
            found = write(piece, rows.slice(start, size))
        except Exception as error:
            answer = of_spark(error)
            if answer.kind != "rows":
                raise
            failed += 1
            if size > 1 and failed <= _MOST:
                middle = (start + stop) // 2
                todo += [(middle, stop), (start, middle)]
                continue
            more = f" (one of {size} rows that were not tried alone: too many are refused)"
            found = dict.fromkeys(range(size), answer.reason + (more if size > 1 else ""))
        refused.update((start + row, reason) for row, reason in found.items())
    return refused
