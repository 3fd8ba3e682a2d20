"""Schemas of a registry that refer to each other are read as one schema with all of their types inside it."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kmr import Avro, Registry
from kmr.values.registry.framing import prefix
from kmr.values.registry.registry import RegisteredSchema, SchemaReference, UnknownSchema
from tests.examples import examples

from .named_types import PRIMITIVES, compact, is_named, namespaced, split
from .test_kernel import columns, drawn, values_of

_ID = 7


class SplitSchema(Registry):
    """A registry of one schema, and of those that it refers to: each of the subject of its name."""

    def __init__(self, schema: Any, choices: Random) -> None:
        super().__init__("http://registry:1")
        own, others = split(schema)
        self.asked: list[str] = []
        self.answers = {
            f"/subjects/{name}/versions/1": _registered(each, choices)
            for name, each in others.items()
        } | {f"/schemas/ids/{_ID}": _registered(own, choices)}

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _ask_once(self, method: str, path: str, answer: type[Any], body: object) -> Any:
        self.asked.append(path)
        if path not in self.answers:
            raise UnknownSchema(path)
        return self.answers[path]


def _registered(schema: Any, choices: Random) -> RegisteredSchema:
    names: list[str] = []

    def collect(each: Any) -> None:
        if isinstance(each, str) and each not in PRIMITIVES:
            names.append(each)
        for inner in each if isinstance(each, list) else ():
            collect(inner)
        if isinstance(each, dict):
            collect(each.get("items", "null"))
            collect(each.get("values", "null"))
            for field in each.get("fields", ()):
                collect(field["type"])

    collect(schema)
    assert is_named(schema)
    # The name of a reference is free.
    references = [
        SchemaReference(choices.choice([name, f"{name} as {choices.random()}"]), name, 1)
        for name in dict.fromkeys(names)
    ]
    return RegisteredSchema(json.dumps(schema), references=tuple(references))


def test_schemas_that_define_a_name_in_two_ways_refuse_their_values_with_the_name() -> None:
    def record(name: str, **types: Any) -> dict[str, Any]:
        fields = [{"name": field, "type": kind} for field, kind in types.items()]
        return {"type": "record", "name": name, "fields": fields}

    def registered(schema: Any, *references: tuple[str, str, int]) -> RegisteredSchema:
        imported = tuple(SchemaReference(*each) for each in references)
        return RegisteredSchema(json.dumps(schema), references=imported)

    old, new = ("c.Money", "money", 1), ("c.Money", "money", 2)
    top = record("c.Top", a="c.A", b="c.B")
    parts = [("c.A", "a", 1), ("c.B", "b", 1)]
    registry = SplitSchema({**record("Own", x="int"), "namespace": "c"}, Random(0))
    registry.answers = {
        "/subjects/money/versions/1": registered(record("c.Money", cents="long")),
        "/subjects/money/versions/2": registered(record("c.Money", units="int", cents="long")),
        "/subjects/a/versions/1": registered(record("c.A", m="c.Money"), old),
        "/subjects/b/versions/1": registered(record("c.B", m="c.Money"), new),
        "/schemas/ids/1": registered(top, *parts),
        "/schemas/ids/2": registered(top, parts[0], ("other", "money", 2)),
    }
    values: pa.BinaryArray = pa.array([prefix(1) + b"\2\2\2", prefix(2) + b"\2\2\2"])
    _, failures = Avro("int", registry=registry).decode(values)
    places = "version 1 of money, and version 2 of money"
    assert failures == {
        0: f"schema 1: it refers to two schemas as c.Money: {places}",
        1: "schema 2: it and the schemas that it refers to define c.Money in two ways",
    }


@given(st.data())
@settings(max_examples=examples(100))
def test_a_schema_in_parts_is_read_as_the_whole_one(data: st.DataObject) -> None:
    schemas = drawn(data, evolved=False)
    assume(schemas.writer == schemas.reader)
    schema = namespaced(schemas.writer)
    registry = SplitSchema(schema, data.draw(st.randoms(use_true_random=False)))
    values = values_of(data, schemas.written, 3)
    framed = pa.array([prefix(_ID) + each for each in values], pa.binary())
    format_ = Avro(compact(schema, Random(0)), registry=registry)
    found, failures = format_.decode(framed)
    assert failures == {}
    assert str(found) == str(columns(values, compact(schema, Random(0))).columns)
    asked = len(registry.asked)
    format_.decode(framed)
    assert len(registry.asked) == asked <= len(registry.answers)
