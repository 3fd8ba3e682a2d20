"""Regular expressions of names (KIP-848, KIP-1152), with RE2's syntax as in Kafka; matched in linear time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["InvalidPattern", "matching_names"]


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
