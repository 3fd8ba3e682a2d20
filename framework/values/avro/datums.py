"""Rows as fastavro encodes them: checked before, because it writes what a schema cannot hold."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ...columns.texts import excerpt
from ..encoding import DoesNotFit, dict_of, encode_each, fit_rows, plain_rows
from .program import SchemaPrograms
from .schema import RECORDS, branch_names, join, resolve, type_of, without_null

if TYPE_CHECKING:
    from collections.abc import Callable

    from .schema import NamedTypes, Schema

    Convert = Callable[[Any], Any]

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def encode_datums(
    rows: pa.Table, parsed: Schema, named: NamedTypes, encode: Callable[[Any], bytes]
) -> pa.BinaryArray:
    """Encode rows by a parsed schema; one that is not a record is written from the column `value`.

    A union of several types is a struct with a field for each branch, or a value that fits one of them.

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
        if name in rows.column_names and _is_union(kind) and not _is_struct(rows, name)
    }
    columns = pa.schema(
        [rows.schema.field(each.name) if each.name in plain else each for each in columns]
    )
    fitted = fit_rows(rows, columns, f"Avro: the schema {schema['name']}".rstrip())
    convert = _converter(schema, named, "") or _same

    def encode_row(row: dict[str, Any]) -> bytes:
        datum = convert(row)
        return encode(datum if is_record else datum["value"])

    return encode_each(plain_rows(fitted), encode_row)


def _is_union(kind: Schema) -> bool:
    return isinstance(without_null(kind), list)


def _is_struct(rows: pa.Table, name: str) -> bool:
    return pa.types.is_struct(rows.schema.field(name).type)


def _same(value: Any) -> Any:
    return value


def _converter(schema: Schema, named: NamedTypes, path: str) -> Convert | None:
    """Return a function from Python values to fastavro's; None where they are the same."""
    schema = resolve(schema, named)
    match type_of(schema):
        case "union":
            return _union_converter(without_null(schema), named, path)
        case "array":
            each = _converter(schema["items"], named, path)
            return each and (lambda items: [each(item) for item in items])
        case "map":
            of_value = _converter(schema["values"], named, path) or _same
            return lambda pairs: {
                key: of_value(value) for key, value in dict_of(pairs, path).items()
            }
        case "record" | "error":
            return _record_converter(schema, named, path)
        case "enum":
            return _checker(set(schema["symbols"]).__contains__, f"{path} (enum {schema['name']})")
        case "string" if isinstance(schema, dict) and schema.get("logicalType") == "uuid":
            return _checker(_UUID.fullmatch, f"{path} (uuid)")
        case _:
            return None


def _record_converter(schema: Schema, named: NamedTypes, path: str) -> Convert | None:
    fields = {
        field["name"]: convert
        for field in schema["fields"]
        if (convert := _converter(field["type"], named, join(path, field["name"]))) is not None
    }
    if not fields:
        return None
    return lambda row: {
        **row,
        **{name: convert(row[name]) for name, convert in fields.items() if name in row},
    }


def _checker(fits: Callable[[Any], object], what: str) -> Convert:
    def check(value: Any) -> Any:
        if not fits(value):
            raise DoesNotFit(f"field {what} cannot hold {excerpt(value)}")
        return value

    return check


def _union_converter(rest: Schema, named: NamedTypes, path: str) -> Convert | None:
    if not isinstance(rest, list):
        convert = _converter(rest, named, path)
        return convert and (lambda value: None if value is None else convert(value))
    branches = [resolve(each, named) for each in rest]
    names = branch_names(branches)
    by_name = {
        name: (
            each.get("name", name) if isinstance(each, dict) else name,
            _converter(each, named, path),
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
