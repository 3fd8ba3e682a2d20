"""Arrow columns in Spark's types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...columns.kinds import is_list
from ...errors import StrategyError
from ..parquet.columns import DestinationColumns
from ..parquet.columns import stored_type as of_files

if TYPE_CHECKING:
    from collections.abc import Mapping

_WIDER: Mapping[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_AS_THEY_ARE = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
    pa.types.is_null,
)
_MOST_DIGITS = 38


def spark_type(kind: Any) -> pa.DataType | None:
    """Return the type of Spark that holds every value of an Arrow type; None if there is none.

    Unsigned integers become the next wider signed type. Timestamps become microseconds (finer digits are
    cut off), in UTC if they have a time zone.
    """
    if kind in _WIDER:
        return _WIDER[kind]
    if any(is_one(kind) for is_one in _AS_THEY_ARE):
        return kind  # type: ignore[no-any-return]
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if _is_held(kind) else None
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type)
    if isinstance(kind, pa.UuidType):
        return pa.string()
    if isinstance(kind, pa.BaseExtensionType):
        return spark_type(kind.storage_type)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return _nested(kind)


def _is_held(kind: Any) -> bool:
    return bool(kind.precision <= _MOST_DIGITS and 0 <= kind.scale <= kind.precision)


def _nested(kind: Any) -> pa.DataType | None:
    if pa.types.is_map(kind):
        key, item = spark_type(kind.key_type), spark_type(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if pa.types.is_struct(kind):
        types = [(field.name, spark_type(field.type)) for field in kind]
        if not types or any(of is None for _, of in types):
            return None
        return pa.struct([pa.field(name, of) for name, of in types])
    if is_list(kind):
        item = spark_type(kind.value_type)
        return None if item is None else pa.list_(item)
    return None


def stored_type(kind: Any) -> Any:
    """Return the type of Spark for an Arrow type; None if that shows none yet, as for files.

    Raises:
        StrategyError: Spark has no type for it.
    """
    known = of_files(kind)
    if known is None:
        return None
    if (found := spark_type(known)) is None:
        raise StrategyError(f"Spark has no type for Arrow's {kind}: return another one")
    return found


def to_spark(table: pa.Table) -> pa.Table:
    """Cast the columns to Spark's types; leave out columns that have no type yet.

    Raises:
        StrategyError: Spark has no type for a column, or a value does not fit.
    """
    fitted = DestinationColumns("Spark", stored=stored_type).fit(table)
    for reason in fitted.refused.values():
        raise StrategyError(reason)
    return fitted.table
