"""Kinds of Arrow types, and columns without the forms that only store them differently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

Array: TypeAlias = Any
"""A pyarrow array of any type; the stubs distinguish item types that are only known at run time."""

Mask: TypeAlias = "NDArray[np.bool_] | None"
"""True for some rows; None for no row."""

JSON_OBJECTS: Final = pa.json_(pa.large_string())
"""What a sink stores that takes objects, and texts of objects; `pa.json_()`: it takes texts only."""


def is_text(kind: pa.DataType) -> bool:
    """Return whether the type is text."""
    return (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether the type is bytes."""
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def is_view(kind: pa.DataType) -> bool:
    """Return whether the type is views of text or bytes."""
    return pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)


def is_list(kind: pa.DataType) -> bool:
    """Return whether the type is one of lists."""
    return (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def is_nested(kind: pa.DataType) -> bool:
    """Return whether the type is lists, structs or maps."""
    return is_list(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind)


def is_number(kind: pa.DataType) -> bool:
    """Return whether the type is integers, floats or decimals."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def has_values(kind: Any) -> bool:
    """Return whether values of the type say which type they have.

    False for null, and for lists, structs and maps that have been empty or full of nulls so far: `list<null>`
    fits every list that follows.
    """
    if pa.types.is_struct(kind):
        return any(has_values(field.type) for field in kind)
    if pa.types.is_map(kind):
        return has_values(kind.item_type)
    return has_values(kind.value_type) if is_list(kind) else not pa.types.is_null(kind)


def plain(array: Array) -> Array:
    """Return the same values without extension types, dictionaries, run ends, views and float16."""
    kind = array.type
    if isinstance(kind, pa.Bool8Type):
        return pc.not_equal(array.storage, pa.scalar(0, pa.int8()))
    if isinstance(kind, pa.BaseExtensionType):
        return plain(array.storage)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _spread(array, plain)
    if pa.types.is_float16(kind):
        return array.cast(pa.float32())
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if pa.types.is_binary_view(kind) else array


def _spread(array: Array, change: Callable[[Array], Array]) -> Array:
    """Return the values of a dictionary or of runs, one for each row."""
    if pa.types.is_dictionary(array.type):
        return change(array.dictionary).take(array.indices)
    rows = np.arange(array.offset, array.offset + len(array))
    return change(array.values).take(pa.array(np.searchsorted(array.run_ends, rows, "right")))


_IN_DICTIONARIES: Final = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _is_known(kind: Any) -> bool:
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return False
    if is_nested(kind):
        return all(_is_known(kind.field(at).type) for at in range(kind.num_fields))
    if pa.types.is_dictionary(kind):
        return kind.value_type in _IN_DICTIONARIES
    return not (is_view(kind) or pa.types.is_run_end_encoded(kind))


def known(array: Array) -> Array:
    """Return the same values in types that Arrow's kernels and writers know.

    These are no views, no run ends, and no dictionaries but those of text and bytes.
    """
    kind = array.type
    if _is_known(kind):
        return array
    if pa.types.is_struct(kind):
        children = [known(array.field(at)) for at in range(kind.num_fields)]
        fields = [each.with_type(child.type) for each, child in zip(kind, children, strict=True)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    if not is_nested(kind):
        return plain(array) if is_view(kind) else _spread(array, known)
    lists = Lists(array)
    if pa.types.is_map(kind):
        keys, items = (known(pc.struct_field(lists.items, [at])) for at in range(2))
        offsets = pa.array(np.concatenate([[0], lists.ends]), pa.int32())
        from_arrays: Any = pa.MapArray.from_arrays
        return from_arrays(offsets, keys, items, mask=lists.null)
    items = known(lists.items)
    item = kind.field(0).with_type(items.type)
    is_large = pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind)
    return lists.with_items(items, pa.large_list(item) if is_large else pa.list_(item))


def with_leaves(kind: Any, change: Callable[[Any], Any]) -> Any:
    """Return a type with others in the place of those inside of structs, maps and lists, at any depth.

    Args:
        change: returns what takes the place of a type that has none inside.
    """
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(with_leaves(each.type, change)) for each in kind])
    if pa.types.is_map(kind):
        item = kind.item_field.with_type(with_leaves(kind.item_type, change))
        make_map: Any = pa.map_
        return make_map(with_leaves(kind.key_type, change), item)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = kind.value_field.with_type(with_leaves(kind.value_type, change))
        return pa.list_(item) if pa.types.is_list(kind) else pa.large_list(item)
    return change(kind)


def whole(column: pa.ChunkedArray[Any]) -> Array:
    """Return a column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def either(one: Mask, other: Mask) -> Mask:
    """Return the rows that are in one mask or the other."""
    if one is None or other is None:
        return other if one is None else one
    return one | other


def mask_where(condition: Array) -> NDArray[np.bool_]:
    """Return a mask that is true where a condition holds; null does not."""
    known = condition.fill_null(fill_value=False) if condition.null_count else condition
    mask: NDArray[np.bool_] = known.to_numpy(zero_copy_only=False)
    return mask


def rows_where(condition: Array) -> Mask:
    """Return the rows where a condition holds; None for no row."""
    return mask_where(condition) if pc.any(condition).as_py() else None


def null_rows(array: Array) -> Mask:
    """Return the rows that are null, also by a null among a dictionary's values or those of runs."""
    if pa.types.is_dictionary(array.type) or pa.types.is_run_end_encoded(array.type):
        array = plain(array)
    return rows_where(array.is_null()) if array.null_count else None


def rows_unless(condition: Array) -> Mask:
    """Return the rows where a condition does not hold; null does."""
    return rows_where(pc.call_function("invert", [condition]))


def mask_of(rows: Sequence[int] | NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """Return a mask for `count` rows that is true for those of these numbers."""
    mask = np.zeros(count, dtype=np.bool_)
    mask[rows] = True
    return mask


def without_rows(table: pa.Table, rows: Collection[int]) -> pa.Table:
    """Return a table without the rows of these numbers."""
    return table.filter(pa.array(~mask_of(list(rows), table.num_rows))) if rows else table


def without(array: Array, bad: Mask) -> Array:
    """Replace some rows by null."""
    if bad is None:
        return array
    return pc.if_else(pa.array(~bad), array, pa.scalar(None, array.type))


def twice(fields: pa.StructType | pa.Schema) -> str | None:
    """Return the first name that two fields have; None if there is none."""
    names = [field.name for field in fields]
    if len(set(names)) == len(names):
        return None
    return next(name for name in names if names.count(name) > 1)


class Lists:
    """Lists of any kind: their items, and the number of items of each list.

    Attributes:
        items: those of all lists; null lists have none.
        lengths: 0 for null.
        null: the lists that are null; None if none is.
    """

    def __init__(self, array: Array) -> None:
        if pa.types.is_map(array.type):
            # A cast would refuse null objects with fields that are never null.
            entries: Any = array.values
            pairs = pa.StructArray.from_arrays(
                [pc.struct_field(entries, [at]) for at in range(2)], ["key", "value"]
            )
            array = pa.Array.from_buffers(
                pa.list_(pairs.type),
                len(array),
                array.buffers()[:2],
                offset=array.offset,
                children=[pairs],
            )
        lengths: Any = pc.list_value_length(array)
        self.lengths: NDArray[np.int64] = np.array(pc.fill_null(lengths, 0), dtype=np.int64)
        # Arrow makes no array without items of objects or lists with extension types in them.
        self.items: Array = pc.list_flatten(array) if self.lengths.any() else array.values[:0]
        self.null = array.is_null() if array.null_count else None

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where each list ends in the items."""
        return np.cumsum(self.lengths)

    def parents(self) -> NDArray[np.int64]:
        """Return the list of each item."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def of_items(self, mask: Mask) -> Mask:
        """Return the lists that have one of these items."""
        return None if mask is None else mask_of(self.parents()[mask], len(self.lengths))

    def with_items(self, items: Array, kind: Any = None) -> Array:
        """Return lists of other items, as many in each.

        Args:
            kind: a type of lists whose items have the type of these; None: any.
        """
        offsets = np.concatenate([[0], self.ends])
        is_large = len(items) >= 2**31 if kind is None else pa.types.is_large_list(kind)
        make: Any = pa.LargeListArray if is_large else pa.ListArray
        bounds = pa.array(offsets, pa.int64() if is_large else pa.int32())
        return make.from_arrays(bounds, items, type=kind, mask=self.null)


def nulls_inside(array: Array) -> Mask:
    """Return the rows with null, at any depth."""
    array = plain(array)
    bad, kind = null_rows(array), array.type
    if is_list(kind) or pa.types.is_map(kind):
        lists = Lists(array)
        return either(bad, lists.of_items(nulls_inside(lists.items)))
    for at in range(kind.num_fields if pa.types.is_struct(kind) else 0):
        bad = either(bad, nulls_inside(pc.struct_field(array, [at])))
    return bad
