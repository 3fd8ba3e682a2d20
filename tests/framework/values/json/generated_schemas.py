"""JSON Schemas made at random: with references, alternatives, objects in parts; and values of them."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
from hypothesis import strategies as st

_NAMES = ["a", "b c", "c/d", "t~e", "ä", "%41"]
_NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
_SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ({"type": "string"}, _TEXTS),
    ({"type": "string", "format": "email", "maxLength": 9}, _TEXTS),
    ({"type": "integer"}, st.integers(-(2**63), 2**63 - 1)),
    ({"type": ["integer", "number"]}, st.integers(-(2**53), 2**53) | _NUMBERS),
    ({"type": "number"}, _NUMBERS),
    ({"anyOf": [{"type": "number"}, {"type": "integer"}]}, st.sampled_from([0.5, 7, -0.0])),
    ({"type": "boolean"}, st.booleans()),
    ({"type": "string", "format": "date"}, st.dates().map(str)),
    ({"enum": ["x", "y"]}, st.sampled_from(["x", "y"])),
    ({"type": "integer", "enum": [1, 2]}, st.sampled_from([1, 2])),
    ({"const": True}, st.sampled_from([True])),
    ({"type": "string", "allOf": [{"maxLength": 9}, {"minLength": 0}]}, _TEXTS),
]  # fmt: skip


class MadeSchema(NamedTuple):
    """A schema with its values.

    Attributes:
        documents: the schemas that it refers to, by name.
        is_recursive: whether it contains itself.
    """

    schema: Any
    values: st.SearchStrategy[Any]
    documents: dict[str, Any]
    is_recursive: bool


class _Making:
    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.definitions: dict[str, dict[str, Any]] = {"": {}, "other.json": {}}
        self.known: list[tuple[str, str, st.SearchStrategy[Any]]] = []
        self.is_recursive = False

    def any(self, depth: int, document: str) -> tuple[Any, st.SearchStrategy[Any]]:
        """Draw a schema for a place in a document."""
        kinds = ["scalar", "scalar", "nullable", "defined"] + [
            "array",
            "map",
            "object",
            "parts",
        ] * bool(depth)
        if known := [each for each in self.known if each[0] == document or not document]:
            kinds += ["again"] * 2
        match self.draw(st.sampled_from(kinds)):
            case "scalar":
                schema, values = self.draw(st.sampled_from(_SCALARS))
                return schema, values
            case "nullable":
                return self._nullable(depth, document)
            case "again":
                other, reference, values = self.draw(st.sampled_from(known))
                return {"$ref": reference if other == document else f"{other}{reference}"}, values
            case "defined":
                return self._defined(depth, document)
            case "array":
                items, values = self.any(depth - 1, document)
                return {"type": "array", "items": items}, st.lists(values, max_size=3)
            case "map":
                items, values = self.any(depth - 1, document)
                made = {"type": "object", "additionalProperties": items}
                return made, st.dictionaries(_TEXTS, values, max_size=3)
            case "object":
                return self.object(depth - 1, document, _NAMES)
            case _:
                return self._parts(depth - 1, document)

    def _nullable(self, depth: int, document: str) -> tuple[Any, st.SearchStrategy[Any]]:
        inner, values = self.any(max(depth - 1, 0), document)
        kind = inner.get("type")  # oneOf: null must not be valid inside, too
        word = self.draw(
            st.sampled_from(["anyOf", "oneOf"] if isinstance(kind, str) else ["anyOf"])
        )
        made = {word: self.draw(st.permutations([inner, {"type": "null"}]))}
        if (
            isinstance(kind, str)
            and not inner.keys() & {"enum", "const", "allOf", "anyOf"}
            and self.draw(st.booleans())
        ):
            made = {**inner, "type": [kind, "null"]}
        return made, st.none() | values

    def _defined(self, depth: int, document: str) -> tuple[Any, st.SearchStrategy[Any]]:
        """Draw a schema into the definitions of this document, or of one that it may refer to."""
        other = document or self.draw(st.sampled_from(list(self.definitions)))
        inner, values = self.any(max(depth - 1, 0), other)
        name = f"{self.draw(st.sampled_from(_NAMES))}{len(self.known)}"
        pointer = name.replace("~", "~0").replace("/", "~1")
        reference = f"#/$defs/{quote(pointer, safe='~')}"
        if self.draw(st.booleans()):
            anchor = f"anchor{len(self.known)}"
            inner, reference = {"allOf": [inner], "$anchor": anchor}, f"#{anchor}"
        self.definitions[other][name] = inner
        self.known.append((other, reference, values))
        return {"$ref": reference if other == document else f"{other}{reference}"}, values

    def object(
        self, depth: int, document: str, names: list[str]
    ) -> tuple[Any, st.SearchStrategy[Any]]:
        """Draw an object with properties."""
        chosen = self.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
        fields = {name: self.any(depth, document) for name in chosen}
        required = [name for name in chosen if self.draw(st.booleans())]
        values = st.fixed_dictionaries(
            {name: fields[name][1] for name in required},
            optional={name: each for name, (_, each) in fields.items() if name not in required},
        )
        made: dict[str, Any] = {"type": "object"}
        made["properties"] = {name: each for name, (each, _) in fields.items()}
        if required:
            made["required"] = required
        if document == "" and self.draw(st.integers(0, 9)) == 0:
            made["properties"]["again"] = self.draw(st.sampled_from(_AGAIN))
            self.is_recursive = True
        return made, values

    def _parts(self, depth: int, document: str) -> tuple[Any, st.SearchStrategy[Any]]:
        """Draw an object whose properties are in parts."""
        one, some = self.object(depth, document, _NAMES[:3])
        other, more = self.object(depth, document, _NAMES[3:])
        values = st.builds(lambda left, right: left | right, some, more)
        form = self.draw(st.sampled_from(["both", "one", "limits"]))
        if form == "both":
            return {"allOf": [one, other]}, values
        if form == "limits":
            one = {**one, "anyOf": [{"required": []}, {"minProperties": 0}]}
        return {**one, "allOf": [other]}, values


_AGAIN = [
    {"$ref": "#"},
    {"type": "array", "items": {"$ref": "#"}},
    {"type": "object", "additionalProperties": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
]


@st.composite
def schemas(draw: Any) -> MadeSchema:
    """Draw a schema of an object."""
    making = _Making(draw)
    schema, values = making.object(2, "", _NAMES)
    own, other = ({"$defs": making.definitions[name]} for name in ("", "other.json"))
    return MadeSchema({**schema, **own}, values, {"other.json": other}, making.is_recursive)


def same(kind: Any, found: Any, value: Any) -> bool:
    """Return whether Arrow's value is a JSON value."""
    if found is None or value is None:
        return found is None and value is None
    if pa.types.is_struct(kind):
        return all(same(each.type, found[each.name], value.get(each.name)) for each in kind)
    if pa.types.is_map(kind):
        return dict(found).keys() == value.keys() and all(
            same(kind.item_type, item, value[key]) for key, item in found
        )
    if pa.types.is_list(kind):
        return len(found) == len(value) and all(
            same(kind.value_type, *pair) for pair in zip(found, value, strict=True)
        )
    if pa.types.is_date(kind):
        return bool(found.isoformat() == value)
    return isinstance(found, bool) == isinstance(value, bool) and bool(found == value)
