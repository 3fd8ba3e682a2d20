"""Quantities that people write with a unit: `16MiB`, `500ms`."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["BYTES", "SECONDS", "read_quantity", "show_quantity"]

BYTES: Final = "bytes"
SECONDS: Final = "seconds"

_UNITS: Final[dict[str, dict[str, float]]] = {
    BYTES: {
        "b": 1,
        **{f"{letter}{b}": 1000**i for i, letter in enumerate("kmgt", 1) for b in ("", "b")},
        **{f"{letter}i{b}": 1024**i for i, letter in enumerate("kmgt", 1) for b in ("", "b")},
    },
    SECONDS: {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400},
}
_QUANTITY: Final = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-z]+)\s*", re.IGNORECASE)


def read_quantity(text: str, unit: str) -> float | int | str:
    """The number of `unit`s that `text` means; `text` itself when it is no number with a unit.

    Bytes: `kB`, `MB`, `GB` are powers of 1000, `KiB`, `MiB`, `GiB` of 1024. Seconds: `ms s m h d`.
    """
    match = _QUANTITY.fullmatch(text)
    factor = _UNITS[unit].get(match[2].lower()) if match else None
    if match is None or factor is None:
        return text
    amount = float(match[1]) * factor
    return int(amount) if unit == BYTES and amount.is_integer() else amount


def show_quantity(value: float, unit: str | None) -> str:
    """A number as people would write it: sizes with their unit, floats without a tail of zeros."""
    if unit == BYTES:
        return f"{int(value) // 2**20}MiB" if value and value % 2**20 == 0 else f"{value}B"
    return f"{value:.12g}"
