"""Does an Arrow column fit a type? The values as they are, in that type, and the rows that do not fit.

    fits            a value that the type holds as it is: range, precision, years, UTF-8, fields
    does not fit    300 in an int8, 1.5 in an int64, 1e300 in a float32, 2**53 + 1 in a float64, the year
                    2300 in nanoseconds, 1.555 in a decimal(5, 2), a list with an item that does not fit
    fits, rounded   0.1 in a float32: the nearest number, which comes with the type
    fits, cut       times with more digits than the type has: `Cast.cut` has the rows

A time without a zone is UTC. Text is parsed: `12`, `1.5`, `true`, ISO 8601.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .casting import Cast, Misfit, fitting, no_cast, parts, safely
from .kinds import (
    Lists,
    either,
    is_bytes,
    is_list,
    is_nested,
    is_text,
    known,
    mask_of,
    null_rows,
    plain,
    rows_unless,
    rows_where,
    twice,
    whole,
    without,
)
from .numbers import to_bool, to_decimal, to_float, to_integer
from .texts import beyond_a_day, excerpt, json_texts, python_values, text_of
from .times import to_date, to_duration, to_time, to_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from .kinds import Array, Mask


def fit(array: Array, to: Any, *, zone: str | None = None) -> Cast:
    """Cast a column to a type. Null fits every type.

    Args:
        zone: of times in text that name none; None is UTC.

    Raises:
        Misfit: no value of the column's type fits.
    """
    if array.type == to and not (
        is_nested(to) or is_text(to) or pa.types.is_time(to) or pa.types.is_dictionary(to)
    ):
        return Cast(array)
    if isinstance(to, pa.BaseExtensionType):
        storage = fit(_storage(array, to), to.storage_type, zone=zone)
        return storage._replace(array=to.wrap_array(storage.array))
    if pa.types.is_null(array.type):
        return Cast(pa.nulls(len(array), to))
    if pa.types.is_dictionary(to):
        return _to_dictionary(array, to, zone)
    if is_text(to):
        return to_text(array, to)
    array = plain(array)
    if pa.types.is_null(array.type):
        return Cast(pa.nulls(len(array), to))
    if is_bytes(array.type) and not is_bytes(to):
        text = to_text(array)
        made = fit(text.array, to, zone=zone)
        return made._replace(bad=either(text.bad, made.bad))
    for is_kind, cast in _CASTS:
        if is_kind(to):
            return cast(array, to)
    for is_time, cast_time in _TIMES:
        if is_time(to):
            return cast_time(array, to, zone)
    return _nested(array, to, zone)


def _to_dictionary(array: Array, to: Any, zone: str | None) -> Cast:
    """Cast to a dictionary that has no null among its values: some writers take none."""
    if array.type == to:
        known = array.dictionary
        if not known.null_count and fit(known, known.type).bad is None:
            return Cast(array)
    values = fit(array, to.value_type, zone=zone)
    return values._replace(array=values.array.dictionary_encode().cast(to))


def _storage(array: Array, to: Any) -> Array:
    if isinstance(array.type, pa.BaseExtensionType):
        return array.storage
    if isinstance(to, pa.UuidType) and is_text(array.type):
        return to_uuid_bytes(array)
    return array


def to_text(array: Array, to: Any | None = None) -> Cast:
    """Cast scalars to text. Bytes must be UTF-8."""
    to = to or pa.string()
    if isinstance(array.type, pa.UuidType):
        return Cast(text_of(array).cast(to))
    inner = plain(array)
    if pa.types.is_null(inner.type):
        return Cast(pa.nulls(len(array), to))
    if is_nested(inner.type):
        raise no_cast(array, to)
    if is_bytes(inner.type):
        return parts(inner.cast(pa.large_binary()), lambda part: part.cast(to))
    if is_text(inner.type):
        raw = inner.cast(pa.large_binary())
        return (
            parts(raw, lambda part: part.cast(to)) if _has_bad_text(raw) else Cast(inner.cast(to))
        )
    beyond = beyond_a_day(inner) if pa.types.is_time(inner.type) else None
    try:
        return Cast(text_of(without(array, beyond)).cast(to), beyond)
    except pa.ArrowNotImplementedError as error:
        raise no_cast(array, to) from error


def raw_or_text(array: Array) -> Cast:
    """Return bytes and text as they are, whether or not they are UTF-8, and other values as `to_text`."""
    inner = plain(array)
    if isinstance(array.type, pa.UuidType) or not (is_text(inner.type) or is_bytes(inner.type)):
        return to_text(array)
    is_fixed = pa.types.is_fixed_size_binary(inner.type)
    return Cast(inner.cast(pa.binary()) if is_fixed else inner)


def json_cast(array: Array, *, nul: bool = True) -> Cast:
    """Encode values as JSON, as `json_values` does."""
    text, why = json_texts(array, nul=nul)
    places = {
        each: mask_of([row for row, of_row in why.items() if of_row == each], len(array))
        for each in set(why.values())
    }
    return Cast(text, mask_of(list(why), len(array)) if why else None, places)


def _has_bad_text(raw: Array) -> bool:
    try:
        raw.cast(pa.large_string())
    except pa.ArrowInvalid:
        return True
    return False


def to_binary(array: Array, to: Any) -> Cast:
    """Cast bytes and text to bytes; of a fixed length only those that have it."""
    if not (is_bytes(array.type) or is_text(array.type)):
        raise no_cast(array, to)
    raw = array.cast(
        pa.binary() if pa.types.is_fixed_size_binary(array.type) else pa.large_binary()
    )
    if pa.types.is_fixed_size_binary(to):
        same = pc.equal(pc.binary_length(raw), pa.scalar(to.byte_width))
        return fitting(raw.cast(pa.binary()), rows_unless(same), safely(to))
    return Cast(raw.cast(to))


UUID: Final = r"^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$"


def to_uuid_bytes(text: Array) -> Array:
    """Return the 16 bytes of UUIDs in text; other text keeps its bytes, so that it does not fit."""
    return pa.array(
        [None if each is None else _uuid(each) for each in python_values(text)],
        pa.binary(),
    )


def _uuid(text: str) -> bytes:
    try:
        return bytes.fromhex(text.replace("-", ""))
    except ValueError:
        return text.encode()


def _nested(array: Array, to: Any, zone: str | None) -> Cast:
    kind = array.type
    if is_list(to) and is_list(kind):
        lists = Lists(array)
        items = in_lists(lists, fit_field(lists.items, field=to.value_field, zone=zone))
        if pa.types.is_list(to) or pa.types.is_large_list(to):  # a cast refuses all for one null
            return items._replace(array=lists.with_items(items.array, to))
        return _as_kind(items._replace(array=lists.with_items(items.array)), to)
    if pa.types.is_map(to) and (pa.types.is_map(kind) or pa.types.is_struct(kind)):
        return to_map(
            array,
            lambda keys: fit(keys, to.key_type, zone=zone),
            partial(fit_field, field=to.item_field, zone=zone),
            to,
        )
    if pa.types.is_struct(to) and pa.types.is_struct(kind):
        return to_struct(
            array, list(to), [partial(fit_field, field=each, zone=zone) for each in to]
        )
    if pa.types.is_struct(to) and pa.types.is_map(kind):
        raise Misfit(f"{kind} cannot become {to}: a map has keys of its own")
    raise no_cast(array, to)


def fit_field(array: Array, *, field: pa.Field[Any], zone: str | None = None) -> Cast:
    """Cast a column to the type of a field, as `fit` does; null does not fit one that cannot be null."""
    made = fit(array, field.type, zone=zone)
    return made if field.nullable else made._replace(bad=either(made.bad, null_rows(array)))


def _as_kind(made: Cast, to: Any) -> Cast:
    """Turn plain lists into lists of a fixed size."""
    if pa.types.is_fixed_size_list(to):
        wrong = rows_unless(pc.equal(pc.list_value_length(made.array), to.list_size))
        array = without(made.array, wrong)
        return made._replace(array=array.cast(to), bad=either(made.bad, wrong))
    raise no_cast(made.array, to)


def in_lists(lists: Lists, items: Cast, path: str = "[]") -> Cast:
    """Turn the rows of items (bad, places, cut) into rows of their lists; keep the array of items."""
    bad = lists.of_items(items.bad)
    places = {f"{path}{place}": rows for place, rows in _places(items, lists.of_items).items()}
    return Cast(items.array, bad, places, lists.of_items(items.cut))


def _places(cast: Cast, of: Callable[[Mask], Mask]) -> dict[str, NDArray[np.bool_]]:
    named = {place: of(rows) for place, rows in cast.places.items()} or {"": of(cast.bad)}
    return {place: rows for place, rows in named.items() if rows is not None}


def to_struct(
    array: Array, fields: Sequence[Any], casts: Sequence[Callable[[Array], Cast]]
) -> Cast:
    """Cast structs field by field; a field that the structs lack is null.

    Args:
        fields: as Arrow's fields, or their names only.
    """
    names = [each if isinstance(each, str) else each.name for each in fields]
    _refuse_twice(array)
    null = rows_where(array.is_null()) if array.null_count else None
    positions = {field.name: at for at, field in enumerate(array.type)}
    bad: Mask = None
    cut: Mask = None
    places: dict[str, NDArray[np.bool_]] = {}
    children = []
    for name, cast in zip(names, casts, strict=True):
        at = positions.get(name)
        made = cast(pa.nulls(len(array)) if at is None else pc.struct_field(array, [at]))
        children.append(made.array)

        def inside(rows: Mask) -> Mask:  # the fields of a null struct are null
            return rows if rows is None or null is None else rows & ~null

        bad, cut = either(bad, inside(made.bad)), either(cut, inside(made.cut))
        if made.bad is not None:
            places |= {f".{name}{place}": rows for place, rows in _places(made, inside).items()}
    if not children and array.type.num_fields:
        raise Misfit(f"{array.type} cannot become a struct without fields")
    if not children:
        return Cast(array)
    mask = None if null is None else pa.array(null)
    kinds = [
        pa.field(each, child.type) if isinstance(each, str) else each.with_type(child.type)
        for each, child in zip(fields, children, strict=True)
    ]
    return Cast(pa.StructArray.from_arrays(children, fields=kinds, mask=mask), bad, places, cut)


def _refuse_twice(structs: Array) -> None:
    if (name := twice(structs.type)) is not None:
        raise Misfit(f"its field {name} is there twice")


def to_map(
    array: Array,
    of_keys: Callable[[Array], Cast],
    of_items: Callable[[Array], Cast],
    kind: Any = None,
) -> Cast:
    """Cast maps, and the structs that Arrow makes of Python's dicts: a field that is null is no key.

    Args:
        kind: the type of maps; None: that of the keys and items.
    """
    if pa.types.is_struct(array.type):
        return _map_of_struct(array, of_keys, of_items, kind)
    if not (pa.types.is_map(array.type) or is_list(array.type)):
        raise Misfit(f"{array.type} is no map")
    lists = Lists(array)
    pairs: Array = lists.items
    if not pa.types.is_struct(pairs.type) or pairs.type.num_fields != 2:
        raise Misfit(f"{array.type} is no map")
    keys = of_keys(pc.struct_field(pairs, [0]))
    null_key = rows_where(keys.array.is_null())
    keys = in_lists(lists, keys._replace(bad=either(keys.bad, null_key)), " key")
    items = in_lists(lists, of_items(pc.struct_field(pairs, [1])))
    bad = either(keys.bad, items.bad)
    made = _maps(lists, keys.array, items.array, bad, kind)
    return Cast(made, bad, {**keys.places, **items.places}, either(keys.cut, items.cut))


def _maps(lists: Lists, keys: Array, items: Array, bad: Mask, kind: Any) -> Array:
    lengths, columns = lists.lengths, [keys, items]
    if bad is not None:  # Arrow allows no null key, not even in a row that is dropped
        there = pa.array(~bad[lists.parents()])
        lengths = np.where(bad, 0, lengths)
        columns = [column.filter(there) for column in columns]
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    from_arrays: Any = pa.MapArray.from_arrays
    return from_arrays(offsets, *columns, type=kind, mask=lists.null)


def _map_of_struct(
    array: Array,
    of_keys: Callable[[Array], Cast],
    of_items: Callable[[Array], Cast],
    kind: Any,
) -> Cast:
    _refuse_twice(array)
    names = [field.name for field in array.type]
    keys = of_keys(pa.array(names, pa.string()))
    no_keys = frozenset() if keys.bad is None else set(np.flatnonzero(keys.bad).tolist())
    bad: Mask = None
    cut: Mask = None
    places: dict[str, NDArray[np.bool_]] = {}
    items, rows = [of_items(pa.nulls(0)).array], []
    for at, name in enumerate(names):
        child = pc.struct_field(array, [at])
        there = np.flatnonzero(child.is_valid().to_numpy(zero_copy_only=False))
        of_rows = partial(_of_rows, count=len(array), rows=there)
        if at in no_keys and len(there):
            bad = either(bad, mask_of(there, len(array)))
            places[f" key {excerpt(name)}"] = mask_of(there, len(array))
        made = of_items(child.take(pa.array(there)))
        items.append(made.array)
        rows.append(there)
        bad, cut = either(bad, of_rows(made.bad)), either(cut, of_rows(made.cut))
        if made.bad is not None:
            places |= {f".{name}{place}": where for place, where in _places(made, of_rows).items()}
    of_row = np.concatenate([np.zeros(0, np.int64), *rows])
    of_name = np.repeat(np.arange(len(names)), [len(each) for each in rows])
    order = np.argsort(of_row, kind="stable")
    if bad is not None:
        order = order[~bad[of_row[order]]]
    ends = np.cumsum(np.bincount(of_row[order], minlength=len(array)))
    mask = array.is_null() if array.null_count else None
    from_arrays: Any = pa.MapArray.from_arrays
    made_maps = from_arrays(
        pa.array(np.concatenate([[0], ends]), pa.int32()),
        keys.array.take(pa.array(of_name[order])),
        _joined(items).take(pa.array(order)),
        type=kind,
        mask=mask,
    )
    return Cast(made_maps, bad, places, cut)


def _of_rows(mask: Mask, *, count: int, rows: NDArray[np.int64]) -> Mask:
    return None if mask is None else mask_of(rows[mask], count)


def _joined(items: Sequence[Array]) -> Array:
    """Join arrays; casts of a caller may have made texts of two widths."""
    table = pa.concat_tables(
        [pa.table({"items": each}) for each in items], promote_options="permissive"
    )
    return table.column(0).combine_chunks()


_CASTS: Final[Sequence[tuple[Callable[[Any], bool], Callable[[Array, Any], Cast]]]] = (
    (pa.types.is_integer, to_integer),
    (pa.types.is_floating, to_float),
    (pa.types.is_boolean, to_bool),
    (pa.types.is_decimal, to_decimal),
    (is_bytes, to_binary),
    (pa.types.is_time, to_time),
    (pa.types.is_duration, to_duration),
)


_TIMES: Final[Sequence[tuple[Callable[[Any], bool], Callable[[Array, Any, str | None], Cast]]]] = (
    (pa.types.is_timestamp, to_timestamp),
    (pa.types.is_date, to_date),
)


def known_to_kernels(table: pa.Table) -> pa.Table:
    """Return the same values without views and run ends, which cannot be filtered or taken; see `known`."""
    for at, field in enumerate(table.schema):
        array = known(whole(table.column(at)))
        if array.type != field.type:
            table = table.set_column(at, field.name, array)
    return table
