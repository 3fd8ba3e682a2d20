"""Sizes and times as people write them: `256MiB`, `7d`, `500ms`, `none`."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["read_bytes", "read_seconds", "show_bytes", "show_seconds"]

_QUANTITY: Final = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_BYTES: Final = {
    "": 1,
    "b": 1,
    **{f"{letter}{b}": 1000**i for i, letter in enumerate("kmgt", 1) for b in ("", "b")},
    **{f"{letter}i{b}": 1024**i for i, letter in enumerate("kmgt", 1) for b in ("", "b")},
}
_SECONDS: Final = {
    "": 1.0,
    "ms": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
}


def read_bytes(text: str) -> int:
    """Bytes; `kB MB GB` are powers of 1000, `KiB MiB GiB` of 1024. Raises ValueError."""
    amount, factor = _read(text, _BYTES)
    size = amount * factor
    if not size.is_integer():
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def read_seconds(text: str) -> float:
    """Seconds; units `ms s m h d`. Raises ValueError."""
    amount, factor = _read(text, _SECONDS)
    return amount * factor


def show_bytes(size: int) -> str:
    """A size in the largest unit that leaves it whole."""
    for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def show_seconds(seconds: float) -> str:
    """A time in the largest unit that leaves it whole."""
    for unit, factor in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds and seconds % factor == 0:
            return f"{seconds / factor:.12g}{unit}"
    return f"{seconds:.12g}s"


def _read(text: str, units: dict[str, int] | dict[str, float]) -> tuple[float, float]:
    match = _QUANTITY.fullmatch(text)
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None:
        known = " ".join(unit for unit in units if unit)
        raise ValueError(f"{text!r} is not a number with one of the units {known}")
    return float(match[1]), float(factor)
