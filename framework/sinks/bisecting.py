"""Write rows to what refuses all of them for one, and does not name it: they are halved until it is alone.

So it is with Spark: a value that cannot be cast, a constraint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

_MOST: Final = 100  # refused pieces; each may be a job of Spark


def bisect(
    count: int,
    write: Callable[[NDArray[np.int64], bool], Mapping[int, str]],
    refusal: Callable[[Exception], str | None],
    find: Callable[[], Mapping[int, str]] = dict,
) -> dict[int, str]:
    """Write rows; return the numbers of those that cannot be written, with the reasons.

    If more than 100 pieces are refused, pieces are halved no further: their reasons say so, unless nothing is
    written and all reasons are the same.

    Args:
        write: writes the rows with these numbers: all, or none if it raises. Returns those that do not fit,
            by their place among them. It is also told whether they are a piece of the rows that are left.
        refusal: returns the reason of an exception that is about some of the rows; None of another one.
        find: called when all rows together are refused; returns rows that would be refused, with the
            reasons: these are not written. The others are halved if they are refused nevertheless.
    """
    refused: dict[int, str] = {}
    failed = 0
    together: dict[int, str] = {}
    words = set[str]()
    todo = [np.arange(count)]
    while todo:
        rows = todo.pop()
        try:
            found = write(rows, len(rows) < count - len(refused) or bool(failed))
        except Exception as error:
            reason = refusal(error)
            if reason is None:
                raise
            if 1 < len(rows) == count and (known := find()):
                refused.update(known)
                words.update(known.values())
                if len(known) < count:
                    todo.append(np.delete(rows, list(known)))
                continue
            failed += 1
            words.add(reason)
            if len(rows) > 1 and failed <= _MOST:
                middle = len(rows) // 2
                todo += [rows[middle:], rows[:middle]]
                continue
            if len(rows) > 1:
                more = f" (one of {len(rows)} rows that were not tried alone: too many are refused)"
                together |= dict.fromkeys(rows.tolist(), reason + more)
            found = dict.fromkeys(range(len(rows)), reason)
        refused.update((int(rows[at]), reason) for at, reason in found.items())
    return refused if len(refused) == count and len(words) == 1 else refused | together
