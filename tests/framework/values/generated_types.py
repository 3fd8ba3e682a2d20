"""Classes of rows made at random, of nested ones that are used several times, and values of them."""

from __future__ import annotations

import datetime as dt
from dataclasses import field, make_dataclass
from decimal import Decimal
from typing import Any, Literal, NamedTuple, NotRequired, TypeAlias, TypedDict
from uuid import UUID

import msgspec
from hypothesis import strategies as st

Values: TypeAlias = st.SearchStrategy[Any]

_INT64 = st.integers(-(2**63), 2**63 - 1)
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=4)
_SCALARS: list[tuple[Any, Values, Any]] = [
    (bool, st.booleans(), True),
    (int, _INT64, 7),
    (float, st.floats(allow_nan=False, allow_infinity=False), 0.5),
    (int | float, st.integers(-(2**53), 2**53) | st.sampled_from([0.5, -0.0]), 1),
    (str, _TEXTS, "-"),
    (bytes, st.binary(max_size=4), b"\xff"),
    (dt.datetime, st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30)).map(  # noqa: DTZ001
        lambda time: time.replace(tzinfo=dt.UTC)), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
    (dt.date, st.dates(), dt.date(2026, 1, 1)),
    (dt.time, st.times(), dt.time(1)),
    (dt.timedelta, st.timedeltas(dt.timedelta(-99), dt.timedelta(99)), dt.timedelta(1)),
    (Decimal, st.decimals(-(10**19), 10**19, places=18), Decimal("1.5")),
    (UUID, st.uuids(), UUID(int=5)),
    (Literal["a", "b"], st.sampled_from(["a", "b"]), "b"),
    (Literal[1, 2], st.sampled_from([1, 2]), 2),
]  # fmt: skip


class MadeClass(NamedTuple):
    """A class, and its values as dicts with the names of encoded fields."""

    cls: Any
    values: Values


class _Making:
    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.known: list[MadeClass] = []

    def annotation(self, depth: int) -> tuple[Any, Values, Any]:
        """Draw an annotation, values of it, and a default."""
        kinds = ["scalar", "scalar", "scalar"] + ["list", "tuple", "map", "class"] * bool(depth)
        match self.draw(st.sampled_from(kinds)):
            case "scalar":
                kind, values, default = self.draw(st.sampled_from(_SCALARS))
                return kind, values, default
            case "list":
                item, values = self._item(depth - 1)
                lists: Any = list
                return lists[item], st.lists(values, max_size=3), list
            case "tuple":
                item, values = self._item(depth - 1)
                tuples: Any = tuple
                return tuples[item, ...], st.lists(values, max_size=3), ()
            case "map":
                item, values = self._item(depth - 1)
                maps: Any = dict
                return maps[str, item], st.dictionaries(_TEXTS, values, max_size=3), dict
            case _:
                made = self.made(depth - 1)
                return made.cls, made.values, None

    def _item(self, depth: int) -> tuple[Any, Values]:
        kind, values, _ = self.annotation(depth)
        if self.draw(st.booleans()):
            return kind | None, values | st.none()
        return kind, values

    def made(self, depth: int) -> MadeClass:
        """Draw a class: a new one, or one that is there already."""
        if self.known and self.draw(st.booleans()):
            return self.draw(st.sampled_from(self.known))  # type: ignore[no-any-return]
        make = self.draw(st.sampled_from([self._struct, self._dataclass, self._typed_dict]))
        self.known.append(make(depth))
        return self.known[-1]

    def _fields(self, depth: int) -> list[tuple[str, Any, Values, Any]]:
        """Draw fields; the default is NODEFAULT where a field is required."""
        found = []
        for at in range(self.draw(st.integers(1, 4))):
            kind, values, default = self.annotation(depth)
            form = self.draw(st.sampled_from(["required", "default", "null"]))
            if form == "null" or default is None:
                kind, values, default = kind | None, values | st.none(), None
            required = form == "required"
            found.append((f"a_field{at}", kind, values, msgspec.NODEFAULT if required else default))
        return found

    def _values(self, fields: list[tuple[str, Any, Values, Any]], rename: Any) -> Values:
        given = {rename(name): values for name, _, values, _ in fields}
        optional = {
            rename(name) for name, *_, default in fields if default is not msgspec.NODEFAULT
        }
        return st.fixed_dictionaries(
            {name: each for name, each in given.items() if name not in optional},
            optional={name: each for name, each in given.items() if name in optional},
        )

    def _name(self) -> str:
        return f"Made{len(self.known)}"

    def _struct(self, depth: int) -> MadeClass:
        fields = self._fields(depth)
        members = [
            (name, kind)
            if default is msgspec.NODEFAULT
            else (
                name,
                kind,
                msgspec.field(default_factory=default) if callable(default) else default,
            )
            for name, kind, _, default in fields
        ]
        renamed = self.draw(st.booleans())
        cls = msgspec.defstruct(
            self._name(),
            members,
            kw_only=True,
            rename="upper" if renamed else None,
        )
        return MadeClass(cls, self._values(fields, str.upper if renamed else str))

    def _dataclass(self, depth: int) -> MadeClass:
        fields = self._fields(depth)
        members: list[Any] = [
            (name, kind)
            if default is msgspec.NODEFAULT
            else (
                name,
                kind,
                field(default_factory=default) if callable(default) else field(default=default),
            )
            for name, kind, _, default in fields
        ]
        return MadeClass(
            make_dataclass(self._name(), members, kw_only=True), self._values(fields, str)
        )

    def _typed_dict(self, depth: int) -> MadeClass:
        fields = self._fields(depth)
        members = {
            name: kind if default is msgspec.NODEFAULT else NotRequired[kind]
            for name, kind, _, default in fields
        }
        return MadeClass(TypedDict(self._name(), members), self._values(fields, str))  # type: ignore[operator]


@st.composite
def classes(draw: Any) -> MadeClass:
    """Draw a class of rows."""
    return _Making(draw).made(2)


def plain(value: Any) -> Any:
    """Return an object as the Python value of its column."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, UUID):
        return str(value)
    if hasattr(value, "__struct_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def same(found: Any, value: Any) -> bool:
    """Return whether a column's value is an object as `plain` returns it; a field that is missing is null."""
    if isinstance(found, dict):
        return isinstance(value, dict) and all(same(found[name], value.get(name)) for name in found)
    if isinstance(found, list) and isinstance(value, dict):  # a map
        return dict(found).keys() == value.keys() and all(
            same(item, value[key]) for key, item in found
        )
    if isinstance(found, list):
        return len(found) == len(value) and all(map(same, found, value))
    return bool(found == value)
