"""Arrow columns in Spark's types."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ...columns.kinds import Lists, either, is_list, mask_of
from ...errors import StrategyError
from ..parquet.columns import DestinationColumns
from ..parquet.columns import stored_type as of_files
from ..parquet.columns import target_of as of_column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...columns.casting import Cast
    from ...columns.fitted import Fitted, TargetColumn
    from ...columns.kinds import Array, Mask

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
        names = {field.name.lower() for field in kind}  # which differ by more than their case
        if not types or len(names) < len(types) or any(of is None for _, of in types):
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


def target_of(column: pa.Field[Any]) -> TargetColumn:
    """Return what a column takes: values of its type, but maps with a key twice, of which Spark keeps one."""
    target = of_column(column)

    def cast(array: Array) -> Cast:
        made = target.cast(array)
        return made._replace(bad=either(made.bad, _rows_with_a_key_twice(made.array)))

    return target._replace(cast=cast) if _has_maps(column.type) else target


def _has_maps(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_maps(field.type) for field in kind)
    return pa.types.is_map(kind) or (is_list(kind) and _has_maps(kind.value_type))


def _rows_with_a_key_twice(array: Array) -> Mask:
    if not _has_maps(array.type):
        return None
    if pa.types.is_struct(array.type):
        children = [pc.struct_field(array, [at]) for at in range(array.type.num_fields)]
        return reduce(either, map(_rows_with_a_key_twice, children))
    lists = Lists(array)
    inside = lists.of_items(_rows_with_a_key_twice(lists.items))
    if not pa.types.is_map(array.type):
        return inside
    keys = pa.table({"of": lists.parents(), "key": pc.struct_field(lists.items, [0])})
    counts = keys.group_by(["of", "key"]).aggregate([([], "count_all")])
    of = counts.filter(pc.greater(counts["count_all"], pa.scalar(1)))["of"].to_numpy()
    return either(inside, mask_of(of, len(array)) if len(of) else None)


def to_spark(table: pa.Table) -> Fitted:
    """Cast the columns to Spark's types; leave out columns that have no type yet."""
    return DestinationColumns("Spark", stored=stored_type, target=target_of, taken=()).fit(table)
