"""Documents of MongoDB, which an envelope holds as text in extended JSON."""

from __future__ import annotations

import base64
import datetime as dt
import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from ..json.json_format import Json
from ..schemas import row_type

if TYPE_CHECKING:
    from ...columns.kinds import Array


def documents(texts: Array, row: type, failures: dict[int, str], path: str) -> Array:
    """Return documents as structs with the fields of a row; `failures` gets those that do not fit."""
    plain: list[bytes | None] = []
    for at, text in enumerate(texts.to_pylist()):
        try:
            decoded = None if text is None else _plain(msgspec.json.decode(text))
            plain.append(None if decoded is None else msgspec.json.encode(decoded))
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
            failures.setdefault(at, f"field {path}: no extended JSON: {error}")
            plain.append(None)
    columns, failed = Json(row).decode(pa.array(plain, pa.binary()))
    for at, reason in failed.items():
        failures.setdefault(at, reason.replace("field ", f"field {path}.", 1))
    null = np.array([each is None for each in plain], np.bool_)
    null[list(failed)] = True
    made: Any = pa.StructArray.from_arrays(
        columns.columns, fields=list(row_type(row).schema), mask=pa.array(null)
    )
    return made


def _plain(value: Any) -> Any:
    """Return a value without MongoDB's wrappers of numbers, times and ids."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, inner),) = value.items()
        if key in ("$oid", "$uuid", "$symbol", "$numberDecimal"):
            return inner
        if key in ("$numberLong", "$numberInt"):
            return int(inner) if isinstance(inner, str) else inner
        if key == "$numberDouble":  # JSON has no NaN: its text is no number of any column
            return float(inner) if math.isfinite(float(inner)) else inner
        if key == "$date":
            return _date(_plain(inner))
        if key == "$binary" and isinstance(inner, dict):
            return inner["base64"]
    if set(value) == {"$binary", "$type"}:
        return base64.b64encode(base64.b64decode(value["$binary"])).decode()
    return {key: _plain(each) for key, each in value.items()}


def _date(value: Any) -> Any:
    if not isinstance(value, int):
        return value
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return (epoch + dt.timedelta(milliseconds=value)).isoformat()
