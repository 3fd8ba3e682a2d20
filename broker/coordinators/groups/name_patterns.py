"""Regular expressions of names (KIP-848, KIP-1152), with RE2's syntax as in Kafka; matched in linear time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import Lock, to_thread

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Library:
    """RE2, as a library has it whose first call takes a third of a second."""

    def __init__(self) -> None:
        self.is_ready = False
        self._preparing = Lock()

    async def prepare(self) -> None:
        """Make the first call, in a thread."""
        if not self.is_ready:
            async with self._preparing:
                if not self.is_ready:
                    await to_thread.run_sync(matching_names, "", [])
                    self.is_ready = True


prepare = _Library().prepare


class InvalidPattern(Exception):
    """RE2 does not know the pattern."""


def matching_names(pattern: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that the pattern matches as a whole, sorted. Raises InvalidPattern."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pa.array(names, pa.string())
    try:
        pc.match_substring_regex(texts, pattern=pattern)  # alone: "a)|(b" is no pattern
        matched = pc.match_substring_regex(texts, pattern=rf"\A(?:{pattern})\z")
    except pa.ArrowInvalid as error:
        raise InvalidPattern(pattern) from error
    return tuple(sorted(name for name in texts.filter(matched).to_pylist() if name is not None))
