"""Whether a JSON schema accepts every document that another one accepts.

The rules are those of Confluent's registry: the content model decides. A property that is added to an object
that allows other properties may have been there with any value; one that is removed from an object that
allows no others is refused. A new required property with a default is compatible.

Where the question cannot be decided by comparing keywords side by side (`if`, `contains`, `unevaluated...`,
parts of `allOf` that only fit together), an unequal schema is incompatible: it may be refused although it
would fit. `format` and other annotations are not compared.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from referencing import Resource
from referencing.jsonschema import DRAFT7

from .json_patterns import TooComplex, UnknownPattern, accepts, matches
from .schema_types import incompatibility

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from referencing._core import Resolver


_TYPES: Final = frozenset(("null", "boolean", "object", "array", "string", "integer", "fraction"))
"""The types that a schema may allow; `number` is `integer` and `fraction`."""
_ANNOTATIONS: Final = frozenset(
    (
        *("$id", "id", "$schema", "$anchor", "$comment", "$defs", "definitions", "title"),
        *("description", "default", "examples", "deprecated", "readOnly", "writeOnly", "format"),
        *("contentEncoding", "contentMediaType", "contentSchema"),
    )
)
_COMBINATORS: Final = ("allOf", "anyOf", "oneOf")
_UPPER: Final = {"maxLength": "string", "maxItems": "array", "maxProperties": "object"}
_LOWER: Final = {"minLength": "string", "minItems": "array", "minProperties": "object"}
_MOST_STEPS: Final = 20_000
_OPAQUE: Final = (
    *(
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "maxContains",
        "unevaluatedProperties",
        "unevaluatedItems",
    ),
    *("$dynamicRef", "$recursiveRef", "extends", "disallow"),
)
"""Keywords that are compared for equality."""


class SchemaNode(NamedTuple):
    """A schema, and what resolves its references."""

    schema: Any
    resolver: Resolver[Any]

    def child(self, schema: Any) -> SchemaNode:
        """Return a subschema."""
        if isinstance(schema, dict) and ("$id" in schema or "id" in schema):
            resource = Resource.from_contents(schema, default_specification=DRAFT7)
            return SchemaNode(schema, self.resolver.in_subresource(resource))
        return SchemaNode(schema, self.resolver)

    def resolved(self) -> SchemaNode:
        """Return the schema that this one refers to, or itself. Keywords beside a reference hold too."""
        node, seen = self, set[int]()
        while isinstance(node.schema, dict) and isinstance(node.schema.get("$ref"), str):
            if id(node.schema) in seen:
                return SchemaNode({}, node.resolver)
            seen.add(id(node.schema))
            beside = {k: v for k, v in node.schema.items() if k not in (*_ANNOTATIONS, "$ref")}
            if beside:
                reference = {"$ref": node.schema["$ref"]}
                parts = [*beside.get("allOf", ()), reference]
                return SchemaNode({**beside, "allOf": parts}, node.resolver)
            found = node.resolver.lookup(node.schema["$ref"])
            node = SchemaNode(found.contents, found.resolver)
        return node


def incompatibilities(reader: SchemaNode, writer: SchemaNode) -> list[str]:
    """Return why the reader's schema does not accept everything that the writer's does."""
    try:
        found = _Comparison().compare(reader, writer, "#/")
    except RecursionError:
        return [incompatibility("TOO_DEEP", "the schemas are nested too deeply to be compared")]
    except TooComplex:
        return [incompatibility("TOO_COMPLEX", "the schemas are too complex to be compared")]
    return [incompatibility(*each) for each in found]


class _Difference(NamedTuple):
    kind: str
    description: str


@dataclass(slots=True)
class _Comparison:
    """One comparison.

    Attributes:
        _compared: the first difference of each pair, if there is one, with the pair, whose identity is the
            key. A pair that is being compared has none yet: schemas may be recursive.
        _steps: how many pairs were compared.
    """

    _compared: dict[tuple[int, int], tuple[list[_Difference], SchemaNode, SchemaNode]] = field(
        default_factory=dict
    )
    _steps: int = 0

    def compare(self, reader: SchemaNode, writer: SchemaNode, at: str) -> list[_Difference]:
        """Return the differences that make the reader refuse what the writer allows.

        Raises TooComplex. Of a pair that was compared before it returns the first difference only.
        """

        def compare_resolved() -> list[_Difference]:
            one, other = reader.resolved(), writer.resolved()
            if one.schema is reader.schema and other.schema is writer.schema:
                return self._resolved(one, other, at)
            return self._once(one, other, lambda: self._resolved(one, other, at))

        return self._once(reader, writer, compare_resolved)

    def _once(
        self, reader: SchemaNode, writer: SchemaNode, compare: Callable[[], list[_Difference]]
    ) -> list[_Difference]:
        pair = (id(reader.schema), id(writer.schema))
        if pair in self._compared:
            return self._compared[pair][0]
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise TooComplex
        before = len(self._compared)
        self._compared[pair] = ([], reader, writer)
        found = compare()
        if found:
            # Pairs inside may fit only because this pair was taken to fit meanwhile.
            for inner in list(self._compared)[before:]:
                if not self._compared[inner][0]:
                    del self._compared[inner]
            self._compared[pair] = (found[:1], reader, writer)
        return found

    def _resolved(self, reader: SchemaNode, writer: SchemaNode, at: str) -> list[_Difference]:
        if _accepts_all(reader.schema) or writer.schema is False:
            return []
        if reader.schema is False:
            return [_Difference("TYPE_NARROWED", f"{at} is not allowed any more")]
        writer = SchemaNode({}, writer.resolver) if writer.schema is True else writer
        return self._objects(reader, writer, at)

    def _objects(self, reader: SchemaNode, writer: SchemaNode, at: str) -> list[_Difference]:
        """Compare two schemas that are JSON objects: combinations first, then keyword by keyword."""
        if reader.schema == writer.schema and "$ref" not in repr(reader.schema):
            return []
        values = _values(writer.schema)
        if values is not None:
            return list(_refused_values(reader, values, at))
        for name in ("anyOf", "oneOf"):
            if name in writer.schema:
                rest = {k: v for k, v in writer.schema.items() if k != name}
                return [
                    each
                    for part in writer.schema[name]
                    for each in self.compare(reader, _both(writer, rest, part), at)
                ]
        if any(name in reader.schema for name in _COMBINATORS):
            return self._combined(reader, writer, at)
        if "allOf" in writer.schema:
            return self._one_of_parts(reader, writer, at)
        return list(self._keywords(reader, writer, at))

    def _combined(self, reader: SchemaNode, writer: SchemaNode, at: str) -> list[_Difference]:
        rest = {k: v for k, v in reader.schema.items() if k not in _COMBINATORS}
        found = self.compare(reader.child(rest), writer, at)
        for part in reader.schema.get("allOf", ()):
            found += self.compare(reader.child(part), writer, at)
        for name in ("anyOf", "oneOf"):
            parts = reader.schema.get(name)
            if parts and all(self.compare(reader.child(each), writer, at) for each in parts):
                found.append(
                    _Difference(
                        "SUM_TYPE_NARROWED", f"no schema of {name} at {at} accepts the old one"
                    )
                )
        return found

    def _one_of_parts(self, reader: SchemaNode, writer: SchemaNode, at: str) -> list[_Difference]:
        rest = {k: v for k, v in writer.schema.items() if k != "allOf"}
        merged = _merged([rest, *writer.schema["allOf"]])
        candidates = [writer.child(each) for each in (*writer.schema["allOf"], rest)]
        if merged is not None:
            candidates.insert(0, writer.child(merged))
        found: list[_Difference] = []
        for each in candidates:
            differences = self.compare(reader, each, at)
            if not differences:
                return []
            found = found or differences
        return found

    def _keywords(self, reader: SchemaNode, writer: SchemaNode, at: str) -> Iterator[_Difference]:
        theirs, ours = _types(writer.schema), _types(reader.schema)
        if not theirs <= ours:
            kind = "TYPE_NARROWED" if theirs & ours else "TYPE_CHANGED"
            missing = ", ".join(sorted(theirs - ours)).replace("fraction", "number")
            yield _Difference(kind, f"the type at {at} excludes {missing}")
            return
        if _values(reader.schema) is not None:
            yield _Difference("ENUM_ARRAY_NARROWED", f"the values at {at} are limited")
        yield from _bounds(reader.schema, writer.schema, theirs, at)
        if "string" in theirs:
            yield from _pattern(reader.schema, writer.schema, at)
        if "object" in theirs:
            yield from self._object(reader, writer, at)
        if "array" in theirs:
            yield from self._array(reader, writer, at)
        yield from self._negation(reader, writer, at)
        for name in _OPAQUE:
            if name in reader.schema and reader.schema[name] != writer.schema.get(name):
                yield _Difference("KEYWORD_CHANGED", f"{name} at {at} was added or changed")

    def _negation(self, reader: SchemaNode, writer: SchemaNode, at: str) -> Iterator[_Difference]:
        if "not" not in reader.schema:
            return
        theirs = writer.child(writer.schema.get("not", False))
        if self.compare(theirs, reader.child(reader.schema["not"]), at):
            yield _Difference("NOT_TYPE_EXTENDED", f"`not` at {at} excludes more")

    # -- objects -----------------------------------------------------------------------------------

    def _object(self, reader: SchemaNode, writer: SchemaNode, at: str) -> Iterator[_Difference]:
        names = {**_mapping(writer, "properties"), **_mapping(reader, "properties")}
        for name in names:
            place = f"{at}properties/{name}/"
            found = self.compare(_property(reader, name), _property(writer, name), place)
            yield from (_explained(each, reader, writer, name) for each in found)
        for name in _added_requirements(reader, writer):
            yield _Difference(
                "REQUIRED_ATTRIBUTE_ADDED",
                f"the property {name} at {at} became required, without a default",
            )
        patterns = {
            **_mapping(writer, "patternProperties"),
            **_mapping(reader, "patternProperties"),
        }
        for pattern in patterns:
            yield from self.compare(
                _pattern_property(reader, pattern),
                _pattern_property(writer, pattern),
                f"{at}patternProperties/{pattern}/",
            )
        for name in ("additionalProperties", "propertyNames"):
            place = f"{at}{name}/"
            for each in self.compare(_part(reader, name), _part(writer, name), place):
                yield each._replace(kind="ADDITIONAL_PROPERTIES_NARROWED")
        yield from self._dependencies(reader, writer, at)

    def _dependencies(
        self, reader: SchemaNode, writer: SchemaNode, at: str
    ) -> Iterator[_Difference]:
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            theirs = _mapping(writer, keyword)
            for name, needed in _mapping(reader, keyword).items():
                if isinstance(needed, list):
                    before = theirs.get(name)
                    fits = set(needed) <= set(before if isinstance(before, list) else ())
                else:
                    before = reader.child(needed), writer.child(theirs.get(name, True))
                    fits = not self.compare(*before, f"{at}{keyword}/{name}/")
                if not fits:
                    yield _Difference(
                        "DEPENDENCY_ADDED", f"{keyword} of {name} at {at} was added or extended"
                    )

    # -- arrays ------------------------------------------------------------------------------------

    def _array(self, reader: SchemaNode, writer: SchemaNode, at: str) -> Iterator[_Difference]:
        count = max(len(_tuple(reader.schema)), len(_tuple(writer.schema)))
        for index in range(count):
            place = f"{at}items/{index}/"
            yield from self.compare(_item(reader, index), _item(writer, index), place)
        yield from self.compare(_item(reader, count), _item(writer, count), f"{at}items/")
        if reader.schema.get("uniqueItems") and not writer.schema.get("uniqueItems"):
            yield _Difference("UNIQUE_ITEMS_ADDED", f"uniqueItems at {at} was added")


# -- parts of schemas ------------------------------------------------------------------------------


def _accepts_all(schema: Any) -> bool:
    return schema is True or (isinstance(schema, dict) and not schema.keys() - _ANNOTATIONS)


def _both(writer: SchemaNode, rest: dict[str, Any], part: Any) -> SchemaNode:
    """Return the schema that joins one alternative of the writer with the rest of its schema."""
    if not rest.keys() - _ANNOTATIONS:
        return writer.child(part)
    merged = _merged([rest, part])
    return writer.child({"allOf": [part, rest]} if merged is None else merged)


def _merged(parts: list[Any]) -> dict[str, Any] | None:
    """Return one schema for several that must all hold; None if they share keywords or have references."""
    merged: dict[str, Any] = {}
    for part in parts:
        if not isinstance(part, dict) or "$ref" in part:
            return None
        for name, value in part.items():
            if name in _ANNOTATIONS:
                continue
            if name == "required" and name in merged:
                merged[name] = [*merged[name], *value]
            elif name == "properties" and not merged.get(name, {}).keys() & value.keys():
                merged[name] = {**merged.get(name, {}), **value}
            elif name in merged and merged[name] != value:
                return None
            else:
                merged[name] = value
        if "additionalProperties" in part and len(parts) > 1 and "properties" in merged:
            return None  # it looks at the properties of its own part only
    return merged


def _types(schema: dict[str, Any]) -> frozenset[str]:
    declared = schema.get("type")
    if declared is None:
        return _TYPES
    names = set([declared] if isinstance(declared, str) else declared)
    if "number" in names:
        names |= {"integer", "fraction"}
    return frozenset(names & _TYPES)


def _values(schema: dict[str, Any]) -> list[Any] | None:
    """Return the values that a schema lists; None if it does not."""
    if "const" in schema:
        return [schema["const"]]
    found: list[Any] | None = schema.get("enum")
    return found


def _refused_values(reader: SchemaNode, values: list[Any], at: str) -> Iterator[_Difference]:
    for each in values:
        if not accepts(reader.schema, reader.resolver, each):
            yield _Difference("ENUM_ARRAY_NARROWED", f"the value {each!r} at {at} is refused")


def _bounds(
    reader: dict[str, Any], writer: dict[str, Any], types: frozenset[str], at: str
) -> Iterator[_Difference]:
    tables: tuple[tuple[dict[str, str], Callable[[Any, Any], bool]], ...] = (
        (_UPPER, operator.ge),
        (_LOWER, operator.le),
    )
    for table, fits in tables:
        for name, of_type in table.items():
            limit, before = reader.get(name), writer.get(name)
            if of_type not in types or limit is None or (table is _LOWER and not limit):
                continue
            if before is None or not fits(limit, before):
                yield _changed(name, before, at)
    if types & {"integer", "fraction"}:
        for word, sign in (("Max", 1), ("Min", -1)):
            limit, before = _limit(reader, word, sign), _limit(writer, word, sign)
            if limit is not None and (before is None or limit < before):
                yield _changed(f"{word.lower()}imum", before, at)
        step, before = reader.get("multipleOf"), writer.get("multipleOf")
        if step is not None and not _is_multiple(before, step, types):
            yield _changed("multipleOf", before, at)


def _limit(schema: dict[str, Any], word: str, sign: int) -> tuple[float, int] | None:
    """Return the limit of numbers as a value that is less where less is allowed; None without one."""
    limits = []
    inclusive, exclusive = schema.get(f"{word.lower()}imum"), schema.get(f"exclusive{word}imum")
    if inclusive is not None:
        limits.append((sign * inclusive, 0 if exclusive is True else 1))
    if exclusive is not None and not isinstance(exclusive, bool):
        limits.append((sign * exclusive, 0))
    return min(limits) if limits else None


def _is_multiple(before: float | None, step: float, types: frozenset[str]) -> bool:
    if before is None:
        return step == 1 and "fraction" not in types
    return (before / step).is_integer() if step else False


def _changed(name: str, before: object, at: str) -> _Difference:
    words = re.sub(r"([A-Z])", r"_\1", name).upper()
    change = "ADDED" if before is None else "CHANGED"
    how = "was added" if before is None else "allows less"
    return _Difference(f"{words}_{change}", f"{name} at {at} {how}")


def _pattern(reader: dict[str, Any], writer: dict[str, Any], at: str) -> Iterator[_Difference]:
    if "pattern" in reader and reader["pattern"] != writer.get("pattern"):
        yield _changed("pattern", writer.get("pattern"), at)


def _mapping(node: SchemaNode, keyword: str) -> dict[str, Any]:
    found: dict[str, Any] = node.schema.get(keyword) or {}
    return found


def _part(node: SchemaNode, keyword: str) -> SchemaNode:
    return node.child(node.schema.get(keyword, True))


def _property(node: SchemaNode, name: str) -> SchemaNode:
    """Return the schema of a property that may have this name: its own, a pattern's, or that of others."""
    found = [_mapping(node, "properties")[name]] if name in _mapping(node, "properties") else []
    patterns = _mapping(node, "patternProperties").items()
    found += [schema for pattern, schema in patterns if _may_match(pattern, name)]
    if not found:
        return _part(node, "additionalProperties")
    return node.child(found[0] if len(found) == 1 else {"allOf": found})


def _may_match(pattern: str, name: str) -> bool:
    try:
        return matches(pattern, name)
    except UnknownPattern:
        return True


def _pattern_property(node: SchemaNode, pattern: str) -> SchemaNode:
    patterns = _mapping(node, "patternProperties")
    if pattern in patterns:
        return node.child(patterns[pattern])
    return _part(node, "additionalProperties")


def _explained(
    difference: _Difference, reader: SchemaNode, writer: SchemaNode, name: str
) -> _Difference:
    """Say of a property that is in one of the schemas alone that it was added or removed."""
    if name not in _mapping(writer, "properties"):
        kind = "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"
    elif name not in _mapping(reader, "properties"):
        kind = "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"
    else:
        return difference
    return difference._replace(kind=kind)


def _added_requirements(reader: SchemaNode, writer: SchemaNode) -> list[str]:
    properties = _mapping(reader, "properties")
    before = set(writer.schema.get("required") or ())
    return [
        name
        for name in reader.schema.get("required") or ()
        if name not in before
        and not (isinstance(properties.get(name), dict) and "default" in properties[name])
    ]


def _tuple(schema: dict[str, Any]) -> list[Any]:
    """Return the schemas of the first items."""
    items = schema.get("items")
    found: list[Any] = items if isinstance(items, list) else schema.get("prefixItems") or []
    return found


def _item(node: SchemaNode, index: int) -> SchemaNode:
    """Return the schema of the item at `index`."""
    first = _tuple(node.schema)
    if index < len(first):
        return node.child(first[index])
    listed = isinstance(node.schema.get("items"), list)
    return _part(node, "additionalItems" if listed else "items")
