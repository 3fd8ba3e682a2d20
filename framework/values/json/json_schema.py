"""The columns of a JSON Schema: drafts 4 to 2020-12, as far as every valid value fits one type of column.

Source: https://json-schema.org/draft/2020-12. Descriptions, defaults and limits of values have no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from ...errors import StrategyError, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..registry.registry import Registry

_pa: Any = pa
_TYPES: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_FORMATS: Final[dict[str, pa.DataType]] = {
    "date-time": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "duration": pa.duration("us"),
}
_BESIDE_REFERENCE: Final = {"properties", "allOf"}
_BASE64: Final = "base64"
_ALTERNATIVES: Final = ("oneOf", "anyOf")
_TYPE_WORDS: Final = {*("type", "enum", "const", "properties", "items", "$ref"), *_ALTERNATIVES}
_BEGINNING: Final = "#"


def registered_columns(registry: Registry, subject: str) -> pa.Schema:
    """Return the columns of the latest schema of a subject.

    Raises:
        StrategyError: it is no JSON Schema, or a part of it has no type of column.
        RegistryError: the registry does not answer, refuses us, or has no such subject.
    """
    latest = registry.by_version(subject)
    what = f"Json: the latest schema of {subject} in {registry.url}"
    if latest.schema_type != "JSON":
        raise StrategyError(f"{what} is {latest.schema_type}")
    try:
        document = msgspec.json.decode(latest.schema)
        others = {
            name: msgspec.json.decode(each.schema)
            for name, each in registry.references(latest).items()
        }
        return columns_of(document, others)
    except (msgspec.DecodeError, StrategyError) as error:
        raise StrategyError(
            f"{what}: {error}; give a type that has the fields you need: Json(Hit, registry=...)"
        ) from error


def columns_of(document: Any, others: Mapping[str, Any] | None = None) -> pa.Schema:
    """Return the columns of a schema of objects.

    Args:
        document: the decoded schema.
        others: the schemas that it refers to, by name.

    Raises:
        StrategyError: a part has no type of column; the message names its place.
    """
    reading = _Reading({"": document, **(others or {})})
    try:
        part = reading.resolved(document, "", _BEGINNING, (_BEGINNING,))
        if not reading.has_fields(part):
            raise StrategyError(f"{part.at}: it is no object with properties")
        return pa.schema(reading.fields(part))
    except (TypeError, AttributeError, ValueError, RecursionError) as error:
        raise StrategyError(f"it is no valid JSON Schema ({reason_of(error)})") from error


class _SchemaPart:
    """A part of a schema: where it is, in which document, inside which references."""

    def __init__(self, schema: Any, document: str, at: str, outer: tuple[str, ...]) -> None:
        self.schema = schema
        self.document = document
        self.at = at
        self.outer = outer


class _Reading:
    """The documents of one schema, by name; its own is the one without."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents

    def has_fields(self, part: _SchemaPart) -> bool:
        """Return whether a part is an object with properties, its own or those of its `allOf`."""
        return any(each.schema.get("properties") for each in self._objects(part))

    def fields(self, part: _SchemaPart) -> list[pa.Field[Any]]:
        """Return the properties of an object."""
        objects = self._objects(part)
        required = {name for each in objects for name in each.schema.get("required", ())}
        found: dict[str, pa.Field[Any]] = {}
        for each in objects:
            for word in _ALTERNATIVES:
                if not all(map(_only_limits, each.schema.get(word, ()))):
                    raise StrategyError(f"{each.at}/{word}: it gives fields to some values only")
            for name, schema in each.schema.get("properties", {}).items():
                kind, nullable = self._type(schema, each, f"/properties/{name}")
                field = pa.field(name, kind, nullable=nullable or name not in required)
                before = found.get(name, field)
                if before.type != field.type:
                    raise StrategyError(f"{each.at}: {name} is {before.type} and {field.type}")
                found[name] = field.with_nullable(field.nullable and before.nullable)
        return list(found.values())

    def _objects(self, part: _SchemaPart) -> list[_SchemaPart]:
        """Return a part, and those of its `allOf`: they are about the same value."""
        found = [part]
        for number, schema in enumerate(part.schema.get("allOf", ())):
            at = f"{part.at}/allOf/{number}"
            found += self._objects(self.resolved(schema, part.document, at, part.outer))
        return found

    def resolved(self, schema: Any, document: str, at: str, outer: tuple[str, ...]) -> _SchemaPart:
        """Follow references."""
        while isinstance(schema, dict) and "$ref" in schema:
            if schema.keys() & _BESIDE_REFERENCE:
                rest = {word: value for word, value in schema.items() if word != "$ref"}
                schema = {"allOf": [{"$ref": schema["$ref"]}, rest]}
                break
            reference = str(schema["$ref"])
            name, _, pointer = reference.partition("#")
            document = name or document
            target = f"{document}#{pointer}"
            if target in outer:
                raise StrategyError(f"{at}: {reference} contains itself, which columns cannot")
            outer = (*outer, target)
            schema = self._target(document, pointer, at, reference)
        if not isinstance(schema, dict):
            raise StrategyError(f"{at}: any value is allowed, which no type of column has")
        return _SchemaPart(schema, document, at, outer)

    def _target(self, document: str, pointer: str, at: str, reference: str) -> Any:
        found = self._documents.get(document)
        first, *steps = unquote(pointer).split("/")
        if first:
            found = _anchored(found, first)
        for step in steps:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = dict(enumerate(found)).get(int(key)) if key.isdecimal() else None
            else:
                found = found.get(key) if isinstance(found, dict) else None
        if found is None:
            raise StrategyError(f"{at}: there is no {reference}")
        return found

    def _type(self, schema: Any, outer: _SchemaPart, step: str) -> tuple[pa.DataType, bool]:
        """Return the type of a part, and whether it may be null."""
        part = self.resolved(schema, outer.document, outer.at + step, outer.outer)
        schema = part.schema
        is_object = self.has_fields(part)
        if len(schema.get("allOf", ())) == 1 and not is_object and _only_limits(schema):
            return self._type(schema["allOf"][0], part, "/allOf/0")
        for word in _ALTERNATIVES:
            if word in schema and not is_object:
                return self._alternatives(part, word)
        if "enum" in schema or "const" in schema:
            return _of_values(schema.get("enum", [schema.get("const")]), part.at)
        names = _names(schema, part.at, ["object"] if is_object else [])
        nullable = "null" in names
        names = [name for name in names if name != "null"]
        if sorted(names) == ["integer", "number"]:
            return pa.float64(), nullable
        if len(names) != 1:
            shown = " or ".join(names) or "null"
            raise StrategyError(f"{part.at}: {shown} is no type of column")
        return self._one(names[0], part), nullable

    def _alternatives(self, part: _SchemaPart, word: str) -> tuple[pa.DataType, bool]:
        schemas = part.schema[word]
        nullable = False
        found = []
        for number, schema in enumerate(schemas):
            if schema == {"type": "null"}:
                nullable = True
            else:
                found.append(self._type(schema, part, f"/{word}/{number}"))
        kinds = {kind for kind, _ in found}
        if kinds == {pa.int64(), pa.float64()}:
            kinds = {pa.float64()}
        if len(kinds) != 1:
            raise StrategyError(
                f"{part.at}: {word} of {len(found)} types; only null may be beside one type"
            )
        return kinds.pop(), nullable or any(null for _, null in found)

    def _one(self, name: str, part: _SchemaPart) -> pa.DataType:
        schema = part.schema
        if name == "string":
            if schema.get("contentEncoding") == _BASE64:
                return pa.binary()
            return _FORMATS.get(schema.get("format", ""), pa.string())
        if name in _TYPES:
            return _TYPES[name]
        if name == "array":
            if "items" not in schema or isinstance(schema["items"], list):
                raise StrategyError(f"{part.at}: an array needs one type of items")
            kind, nullable = self._type(schema["items"], part, "/items")
            return pa.list_(pa.field("item", kind, nullable=nullable))
        if name == "object" and self.has_fields(part):
            return pa.struct(self.fields(part))
        if name == "object" and isinstance(schema.get("additionalProperties"), dict):
            step = "/additionalProperties"
            kind, nullable = self._type(schema["additionalProperties"], part, step)
            made: pa.DataType = _pa.map_(pa.string(), pa.field("value", kind, nullable=nullable))
            return made
        raise StrategyError(f"{part.at}: {name} without properties is no type of column")


def _only_limits(schema: Any) -> bool:
    """Return whether a schema says neither what a value is nor which fields it has."""
    return isinstance(schema, dict) and not schema.keys() & _TYPE_WORDS


def _anchored(schema: Any, anchor: str) -> Any:
    """Return the part of a document with an anchor; None if there is none."""
    if isinstance(schema, dict) and anchor in (schema.get("$anchor"), schema.get("$dynamicAnchor")):
        return schema
    inner = schema.values() if isinstance(schema, dict) else schema
    found = (_anchored(each, anchor) for each in inner if isinstance(each, dict | list))
    return next((each for each in found if each is not None), None)


def _names(schema: Any, at: str, otherwise: list[str]) -> list[str]:
    names = schema.get("type", otherwise)
    if not names:
        raise StrategyError(f"{at}: it has no type")
    return list(names) if isinstance(names, list) else [names]


def _of_values(values: Iterable[Any], at: str) -> tuple[pa.DataType, bool]:
    kinds = {type(value) for value in values}
    nullable = type(None) in kinds
    for kinds_of_column, kind in (
        ({str}, pa.string()),
        ({bool}, pa.bool_()),
        ({int}, pa.int64()),
        ({int, float}, pa.float64()),
        ({float}, pa.float64()),
    ):
        if kinds - {type(None)} == kinds_of_column:
            return kind, nullable
    raise StrategyError(f"{at}: its values are of several types")
