"""Rows as the datums that fastavro encodes: unions, maps, defaults, and what a schema cannot hold."""

from __future__ import annotations

import re
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import fastavro
import pyarrow as pa

from ...columns.kinds import is_list
from ...columns.texts import excerpt
from ..encoding import DoesNotFit, dict_of, encode_each, fit_rows, plain_rows
from .program import SchemaPrograms
from .schema import (
    RECORDS,
    NamedTypes,
    Schema,
    branch_names,
    default_value,
    inlined,
    join,
    resolve,
    show,
    type_of,
    without_null,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Convert = Callable[[Any], Any]

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_REFUSALS: Final = (ValueError, TypeError, KeyError, OverflowError, AttributeError)
"""Errors of fastavro about a datum."""


def encode_datums(
    rows: pa.Table, parsed: Schema, named: NamedTypes, encode: Callable[[Any], bytes]
) -> pa.BinaryArray:
    """Encode rows by a parsed schema; one that is not a record is written from the column `value`.

    A union of several types is a struct with a field for each branch, or a value that fits one of them. A
    field that the rows lack has the default of the schema.

    Raises:
        StrategyError: the schema has no such columns.
        RowsDoNotFit: the schema cannot hold a value.
    """
    schema = resolve(parsed, named)
    is_record = type_of(schema) in RECORDS
    if not is_record:
        schema = {"type": "record", "name": "", "fields": [{"name": "value", "type": schema}]}
    columns = SchemaPrograms(parsed, named).schema
    kinds = {field["name"]: resolve(field["type"], named) for field in schema["fields"]}
    plain = {
        name
        for name, kind in kinds.items()
        if _is_union(kind) and name in rows.column_names and not _is_struct(rows, name)
    }
    columns = pa.schema(
        [rows.schema.field(each.name) if each.name in plain else each for each in columns]
    )
    fitted = fit_rows(rows, columns, f"Avro: the schema {schema['name']}".rstrip())
    written = set(fitted.column_names)
    given: Any = pa.struct([each for each in rows.schema if each.name in written])
    convert = _record_converter(schema, named, "", given) or _same

    def encode_row(row: dict[str, Any]) -> bytes:
        datum = convert(row)
        try:
            return encode(datum if is_record else datum["value"])
        except _REFUSALS as error:
            raise (_refusal(datum, schema, named, "") or error) from error

    return encode_each(plain_rows(fitted), encode_row)


def _refusal(datum: Any, schema: Schema, named: NamedTypes, path: str) -> DoesNotFit | None:
    """Return the reason why fastavro refuses a datum: the first field that it refuses alone."""
    for field in schema["fields"]:
        name, kind = join(path, field["name"]), resolve(field["type"], named)
        value = datum.get(field["name"])
        try:
            alone = fastavro.parse_schema(inlined(kind, named, set()))
            fastavro.schemaless_writer(BytesIO(), alone, value)
        except _REFUSALS:
            value = value[1] if isinstance(value, tuple) else value
            inner = resolve(without_null(kind), named)
            if type_of(inner) in RECORDS and isinstance(value, dict):
                return _refusal(value, inner, named, name)
            return _cannot_hold(name, kind, value)
    return None


def _cannot_hold(name: str, kind: Schema, value: Any) -> DoesNotFit:
    what = "be null" if value is None else f"hold {excerpt(value)}"
    return DoesNotFit(f"field {name} ({show(kind)}) cannot {what}")


def _is_union(kind: Schema) -> bool:
    return isinstance(without_null(kind), list)


def _is_struct(rows: pa.Table, name: str) -> bool:
    return pa.types.is_struct(rows.schema.field(name).type)


def _same(value: Any) -> Any:
    return value


def _converter(schema: Schema, named: NamedTypes, path: str, given: Any) -> Convert | None:
    """Return a function from Python values to fastavro's; None where they are the same.

    Args:
        given: the type of the values in the rows.
    """
    schema = resolve(schema, named)
    match type_of(schema):
        case "union":
            return _union_converter(without_null(schema), named, path, given)
        case "array":
            item = given.value_type if is_list(given) else pa.null()
            each = _converter(schema["items"], named, path, item)
            return each and (lambda items: [each(item) for item in items])
        case "map":
            item = given.item_type if pa.types.is_map(given) else pa.null()
            of_value = _converter(schema["values"], named, path, item) or _same
            return lambda pairs: {
                key: of_value(value) for key, value in dict_of(pairs, path).items()
            }
        case "record" | "error":
            return _record_converter(schema, named, path, given)
        case "enum":
            return _checker(set(schema["symbols"]).__contains__, f"{path} (enum {schema['name']})")
        case "string" if isinstance(schema, dict) and schema.get("logicalType") == "uuid":
            return _checker(_UUID.fullmatch, f"{path} (uuid)")
        case _:
            return None


def _record_converter(schema: Schema, named: NamedTypes, path: str, given: Any) -> Convert | None:
    types = {each.name: each.type for each in given} if pa.types.is_struct(given) else None
    converts: dict[str, Convert] = {}
    lacking: dict[str, Any] = {}
    for field in schema["fields"]:
        name, kind = field["name"], resolve(field["type"], named)
        full, is_nullable = join(path, name), _has_null(kind)
        if types is not None and name not in types:
            if "default" in field:  # fastavro takes it as it is in JSON, where bytes are text
                lacking[name] = default_value(kind, field["default"], named)
            elif not is_nullable:
                converts[name] = _refuser(f"field {full}: the rows lack it, and it has no default")
        elif convert := _converter(kind, named, full, pa.null() if types is None else types[name]):
            converts[name] = convert if is_nullable else _of_value(convert, full, kind)
    if not converts and not lacking:
        return None

    def converted(row: dict[str, Any]) -> dict[str, Any]:
        made = {name: convert(row.get(name)) for name, convert in converts.items()}
        return {**row, **made, **lacking}

    return converted


def _has_null(kind: Schema) -> bool:
    return type_of(kind) == "null" or (isinstance(kind, list) and "null" in map(type_of, kind))


def _refuser(reason: str) -> Convert:
    def refuse(value: Any) -> Any:
        raise DoesNotFit(reason)

    return refuse


def _of_value(convert: Convert, path: str, kind: Schema) -> Convert:
    def convert_value(value: Any) -> Any:
        if value is None:
            raise _cannot_hold(path, kind, value)
        return convert(value)

    return convert_value


def _checker(fits: Callable[[Any], object], what: str) -> Convert:
    def check(value: Any) -> Any:
        if not fits(value):
            raise DoesNotFit(f"field {what} cannot hold {excerpt(value)}")
        return value

    return check


def _branch_name(branch: Schema, name: str) -> str:
    """Return fastavro's name of a branch: that of a named type, else `name`."""
    return str(branch.get("name", name)) if isinstance(branch, dict) else name


def _union_converter(rest: Schema, named: NamedTypes, path: str, given: Any) -> Convert | None:
    if not isinstance(rest, list):
        convert = _converter(rest, named, path, given)
        # named, because fastavro would look for the branch, and does not find all in the unions inside
        name = _branch_name(resolve(rest, named), type_of(resolve(rest, named)))
        return convert and (lambda value: None if value is None else (name, convert(value)))
    branches = [resolve(each, named) for each in rest]
    names = branch_names(branches)
    types = {each.name: each.type for each in given} if pa.types.is_struct(given) else {}
    by_name = {
        name: (
            _branch_name(each, name),
            _converter(each, named, path, types.get(name, pa.null())),
        )
        for name, each in zip(names, branches, strict=True)
    }

    def chosen(value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() - by_name.keys():
            return value  # not a struct of branches: fastavro chooses
        given = [name for name in by_name if value.get(name) is not None]
        if len(given) > 1:
            raise DoesNotFit(f"field {path}: the union has values of {' and '.join(given)}")
        for name in given:
            full, convert = by_name[name]
            return full, convert(value[name]) if convert else value[name]
        return None

    return chosen
