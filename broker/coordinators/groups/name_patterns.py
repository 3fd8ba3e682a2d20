"""Regular expressions of names (KIP-848, KIP-1152), with RE2's syntax as in Kafka; matched in linear time.

Linear is not short: `(a|b)*a(a|b){200}c` takes 2 ms for a name of 249 letters. So names are matched in a
thread, and for a limited time.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from anyio import CapacityLimiter, to_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_SECONDS: Final = 1.0
"""Time that a pattern may take for all names; `a.*` takes 20 ms for 4,000."""
_SOME_SECONDS: Final = 0.05  # of one call, which cannot be interrupted


class InvalidPattern(Exception):
    """RE2 does not know the pattern, or it takes too long."""


class NamePatterns:
    """Matches patterns one after the other, in a thread."""

    def __init__(self) -> None:
        self._limiter = CapacityLimiter(1)

    async def match(self, pattern: str, names: Sequence[str]) -> tuple[str, ...]:
        """Do the same as `matching_names`."""
        return await to_thread.run_sync(matching_names, pattern, names, limiter=self._limiter)


def matching_names(pattern: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that the pattern matches as a whole, sorted. Raises InvalidPattern."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = rf"\A(?:{pattern})\z"
    matched: list[str] = []
    at, count = 0, 1
    try:
        pc.match_substring_regex(pa.array([""]), pattern=pattern)  # alone: "a)|(b" is no pattern
        began = monotonic()  # the first call of a process takes a third of a second
        while at < len(names):
            texts = pa.array(names[at : at + count], pa.string())
            before = monotonic()
            found = texts.filter(pc.match_substring_regex(texts, pattern=whole))
            matched += [str(name) for name in found.to_pylist()]
            at, now = at + count, monotonic()
            if now - began > MOST_SECONDS:
                raise InvalidPattern(f"{pattern} takes too long")
            count = max(1, min(4 * count, int(count * _SOME_SECONDS / max(now - before, 1e-6))))
    except pa.ArrowInvalid as error:
        raise InvalidPattern(pattern) from error
    return tuple(sorted(matched))
