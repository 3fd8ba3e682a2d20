"""Values that end the process where Arrow reads them: endless ones, and lazy objects that raise."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ..errors import as_exception, reason_of

DEEPEST: Final = 100  # levels; the casts of sinks call themselves for each
ENDLESS: Final = f"it contains itself, or is nested more than {DEEPEST} levels deep"


class _Unreadable(Exception):
    """A lazy object raises when its class is asked for; the text is the reason."""


def _read_class(value: Any) -> None:
    try:
        value.__class__  # noqa: B018
    except BaseException as error:
        raise _Unreadable(reason_of(as_exception(error))) from error


_WALKER: Final = msgspec.msgpack.Encoder(enc_hook=_read_class)
"""It walks through values, a hundred times faster than Arrow, and stops where they are too deep."""


def readable(values: list[Any], refused: dict[int, str], first: int = 0) -> list[Any]:
    """Return values with None in the place of those that Arrow cannot read; `refused` gets the reasons.

    Args:
        first: the row of the first value.
    """
    try:
        _WALKER.encode(values)
    except Exception as error:  # noqa: BLE001  other values that it cannot encode do not matter here
        if len(values) > 1:
            middle = len(values) // 2
            left = readable(values[:middle], refused, first)
            return left + readable(values[middle:], refused, first + middle)
        if isinstance(error, _Unreadable | RecursionError):
            refused[first] = str(error) if isinstance(error, _Unreadable) else ENDLESS
            return [None]
    return values
