"""Values that Arrow would change or refuse: pandas' times with nanoseconds, masked arrays, odd zones."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet


def are_foreign(classes: AbstractSet[type], kind: pa.DataType) -> bool:
    """Return whether values of these classes, or inside of them, may be such that `plain_foreign` is needed.

    Args:
        kind: what Arrow made of the values.
    """
    if np.ma.MaskedArray in classes:
        return True
    if "pandas" not in sys.modules:
        return False
    return any(map(_is_of_pandas, classes)) or (pa.types.is_nested(kind) and _has_times(kind))


def without_missing(values: list[Any]) -> list[Any]:
    """Return values with None in the place of pandas' `NaT` and `NA`."""
    if "pandas" not in sys.modules or not any(map(_is_missing, set(map(type, values)))):
        return values
    return [None if _is_missing(type(value)) else value for value in values]


def plain_foreign(value: Any) -> Any:
    """Return a value as Arrow keeps it, a missing one of pandas as None; others as they are."""
    if isinstance(value, np.ma.MaskedArray):
        return value.tolist()
    if type(value) is datetime and value.tzinfo is not None:
        return value.astimezone(UTC)  # Arrow has no zones with seconds
    if not _is_of_pandas(type(value)):
        return value
    if _is_missing(type(value)):
        return None
    if getattr(value, "nanosecond", 0):
        zone = None if value.tzinfo is None else "UTC"
        return pa.scalar(value.value, pa.timestamp("ns", zone)) if zone else value.to_datetime64()
    return value.to_timedelta64() if getattr(value, "nanoseconds", 0) else value


def _is_missing(cls: type) -> bool:
    return cls.__name__ in ("NaTType", "NAType") and _is_of_pandas(cls)


def _is_of_pandas(cls: type) -> bool:
    return cls.__module__.startswith("pandas.")


def _has_times(kind: Any) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_times(kind.field(at).type) for at in range(kind.num_fields))
    return pa.types.is_timestamp(kind) or pa.types.is_duration(kind)
