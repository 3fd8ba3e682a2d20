"""Whether the default values in an Avro schema are values of their fields: Avro's library does not ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from avro.errors import SchemaParseException
from avro.schema import ArraySchema, EnumSchema, FixedSchema, MapSchema, RecordSchema, UnionSchema

if TYPE_CHECKING:
    from avro.schema import Field, Schema


_INTEGERS: Final = {"int": 2**31, "long": 2**63}


def check_defaults(schema: Schema) -> None:
    """Check all fields with a default. Raises SchemaParseException that names the first wrong one."""
    _check(schema, set())


def _check(schema: Schema, seen: set[int]) -> None:
    if id(schema) in seen:
        return
    seen.add(id(schema))
    match schema:
        case RecordSchema():
            for field in schema.fields:
                if field.has_default and not _fits(field.default, field.type):
                    raise SchemaParseException(
                        f"the default {field.default!r} of the field {field.name} of {schema.fullname}"
                        " is not a value of its type"
                    )
                _check(field.type, seen)
        case ArraySchema():
            _check(schema.items, seen)
        case MapSchema():
            _check(schema.values, seen)
        case UnionSchema():
            for each in schema.schemas:
                _check(each, seen)


def _fits(value: Any, schema: Schema) -> bool:
    """Whether it is a value of the schema, in the JSON of defaults; of a union: of one of its branches."""
    match schema:
        case UnionSchema():
            return any(_fits(value, each) for each in schema.schemas)
        case RecordSchema():
            return isinstance(value, dict) and all(
                _field_fits(value, each) for each in schema.fields
            )
        case ArraySchema():
            return isinstance(value, list) and all(_fits(each, schema.items) for each in value)
        case MapSchema():
            return isinstance(value, dict) and all(
                _fits(each, schema.values) for each in value.values()
            )
        case EnumSchema():
            return isinstance(value, str)
        case FixedSchema():
            return isinstance(value, str) and len(value) == schema.size
    return _primitive_fits(value, schema.type)


def _field_fits(values: dict[str, Any], field: Field) -> bool:
    if field.name in values:
        return _fits(values[field.name], field.type)
    return bool(field.has_default)


def _primitive_fits(value: Any, kind: str) -> bool:
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("string", "bytes"):
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if kind in _INTEGERS:
        return isinstance(value, int) and -_INTEGERS[kind] <= value < _INTEGERS[kind]
    return True
