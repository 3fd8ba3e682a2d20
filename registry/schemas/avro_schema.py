"""Avro schemas: parsed and compared by Apache Avro's own library, written as its Java library writes them."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any, Final

from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.errors import AvroException, IgnoredLogicalType
from avro.name import Names
from avro.schema import make_avsc_object

from ..error_codes import invalid_schema
from .avro_defaults import check_defaults
from .schema_types import ParsedSchema, incompatibility

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from avro.schema import Schema

    from .schema_types import Dependency


_PRIMITIVES: Final = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)
_NAMED: Final = frozenset(("record", "error", "enum", "fixed"))
_OWN: Final = {
    "record": ("type", "name", "namespace", "doc", "fields", "aliases"),
    "error": ("type", "name", "namespace", "doc", "fields", "aliases"),
    "enum": ("type", "name", "namespace", "doc", "symbols", "default", "aliases"),
    "fixed": ("type", "name", "namespace", "doc", "size", "aliases"),
    "array": ("type", "items"),
    "map": ("type", "values"),
    "field": ("name", "type", "doc", "default", "order", "aliases"),
}
"""By kind: the attributes that the specification gives it; others are the user's properties."""


class AvroSchema(ParsedSchema):
    """A schema of Avro; `schema` is the library's form of it.

    Text: JSON without white space, attributes in the order of Java's `Schema.toString()`; a name is
    qualified only where its namespace differs from the enclosing one.
    """

    def __init__(self, text: str, dependencies: Sequence[Dependency] = ()) -> None:
        """Raises RequestRefused if the schema is invalid."""
        try:
            self._document = json.loads(text)
            # A logical type that the library does not know is a property like any other.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", IgnoredLogicalType)
                self.schema = _parse(self._document, dependencies)
            check_defaults(self.schema)
            self._text = _dumps(_CanonicalSchema().schema(self._document, None))
        except (AvroException, ValueError, TypeError, AttributeError, KeyError) as error:
            raise invalid_schema(str(error)) from error
        except RecursionError as error:
            raise invalid_schema("it is nested too deeply") from error

    @property
    def text(self) -> str:
        return self._text

    def normalized(self) -> str:
        """Users' properties and aliases are sorted."""
        return _dumps(_CanonicalSchema(normalize=True).schema(self._document, None))

    def incompatibilities(self, writer: ParsedSchema) -> list[str]:
        """The rules of schema resolution."""
        assert isinstance(writer, AvroSchema)  # noqa: S101  the caller compares the types
        checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
        found = checker.get_compatibility(self.schema, writer.schema)
        if found.compatibility is SchemaCompatibilityType.compatible:
            return []
        kinds = ", ".join(dict.fromkeys(each.name.upper() for each in found.incompatibilities))
        messages, places = "; ".join(sorted(found.messages)), ", ".join(sorted(found.locations))
        return [incompatibility(kinds, f"at {places}: {messages}")]


def _parse(document: object, dependencies: Sequence[Dependency]) -> Schema:
    names = Names()
    for each in dependencies:
        make_avsc_object(json.loads(each.text), names)
    return make_avsc_object(document, names)


def _dumps(document: object) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


class _CanonicalSchema:
    """Write the JSON of a valid schema in canonical order."""

    def __init__(self, *, normalize: bool = False) -> None:
        self._normalize = normalize
        self._defined: set[str] = set()

    def schema(self, schema: Any, space: str | None) -> Any:
        """Return the canonical form of a schema inside the namespace `space`."""
        if isinstance(schema, list):
            return [self.schema(each, space) for each in schema]
        if isinstance(schema, str):
            return schema if schema in _PRIMITIVES else _relative(_full(schema, space), space)
        kind = schema["type"]
        if isinstance(kind, dict | list) or kind not in (*_PRIMITIVES, *_NAMED, "array", "map"):
            return self.schema(kind, space)  # {"type": {...}} around a schema
        if kind in _PRIMITIVES:
            properties = self._properties(schema, ("type",))
            return {"type": kind, **properties} if properties else kind
        if kind in _NAMED:
            return self._named(kind, schema, space)
        part = "items" if kind == "array" else "values"
        return {
            "type": kind,
            part: self.schema(schema[part], space),
            **self._properties(schema, _OWN[kind]),
        }

    def _named(self, kind: str, schema: Mapping[str, Any], space: str | None) -> Any:
        full = _full(schema["name"], schema.get("namespace", space))
        if full in self._defined:
            return _relative(full, space)
        self._defined.add(full)
        inner, _, name = full.rpartition(".")
        written: dict[str, Any] = {"type": kind, "name": name}
        if inner != (space or ""):
            written["namespace"] = inner
        if schema.get("doc") is not None:
            written["doc"] = schema["doc"]
        if kind in ("record", "error"):
            written["fields"] = [self._field(each, inner or None) for each in schema["fields"]]
        for part in ("symbols", "size", "default"):
            if part in schema and part in _OWN[kind]:
                written[part] = schema[part]
        written |= self._properties(schema, _OWN[kind])
        if schema.get("aliases"):
            written["aliases"] = self._aliases(
                _relative(_full(each, inner or None), inner or None) for each in schema["aliases"]
            )
        return written

    def _field(self, field: Mapping[str, Any], space: str | None) -> dict[str, Any]:
        written = {"name": field["name"], "type": self.schema(field["type"], space)}
        if field.get("doc") is not None:
            written["doc"] = field["doc"]
        if "default" in field:
            written["default"] = field["default"]
        if field.get("order", "ascending") != "ascending":
            written["order"] = field["order"]
        if field.get("aliases"):
            written["aliases"] = self._aliases(field["aliases"])
        return written | self._properties(field, _OWN["field"])

    def _aliases(self, aliases: Iterable[str]) -> list[str]:
        return sorted(aliases) if self._normalize else list(aliases)

    def _properties(self, schema: Mapping[str, Any], own: Sequence[str]) -> dict[str, Any]:
        found = {name: value for name, value in schema.items() if name not in own}
        return dict(sorted(found.items())) if self._normalize else found


def _full(name: str, space: str | None) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _relative(full: str, space: str | None) -> str:
    inner, _, name = full.rpartition(".")
    return name if inner == (space or "") else full
