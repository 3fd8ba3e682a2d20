"""Write rows to what refuses all of them for one, and does not name it: they are halved until it is alone.

So it is with Spark: a value that cannot be cast, a constraint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MOST: Final = 100  # refused pieces; each may be a job of Spark


def bisect(
    count: int,
    write: Callable[[int, int], Mapping[int, str]],
    refusal: Callable[[Exception], str | None],
) -> dict[int, str]:
    """Write rows; return the numbers of those that cannot be written, with the reasons.

    If more than 100 pieces are refused, pieces are halved no further: their reasons say so, unless nothing is
    written and all reasons are the same.

    Args:
        write: writes the rows from one number to before another: all, or none if it raises. Returns those
            that do not fit, by their numbers in the piece.
        refusal: returns the reason of an exception that is about some of the rows; None of another one.
    """
    refused: dict[int, str] = {}
    failed = 0
    together: dict[int, str] = {}
    words = set()
    todo = [(0, count)]
    while todo:
        start, stop = todo.pop()
        size = stop - start
        try:
            found = write(start, stop)
        except Exception as error:
            reason = refusal(error)
            if reason is None:
                raise
            failed += 1
            words.add(reason)
            if size > 1 and failed <= _MOST:
                middle = (start + stop) // 2
                todo += [(middle, stop), (start, middle)]
                continue
            if size > 1:
                more = f" (one of {size} rows that were not tried alone: too many are refused)"
                together |= dict.fromkeys(range(start, stop), reason + more)
            found = dict.fromkeys(range(size), reason)
        refused.update((start + row, reason) for row, reason in found.items())
    return refused if len(refused) == count and len(words) == 1 else refused | together
