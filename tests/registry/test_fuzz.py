"""Random and mutated schemas and requests: each is answered, and never with 500."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conftest import Rest

SCHEMAS = {
    "AVRO": [
        '"int"',
        (
            '{"type":"record","name":"a.R","fields":[{"name":"x","type":["null","int"],"default":null},'
            '{"name":"y","type":{"type":"array","items":"a.R"}}]}'
        ),
        '{"type":"enum","name":"E","symbols":["A","B"],"default":"A"}',
        '{"type":"bytes","logicalType":"decimal","precision":4,"scale":2}',
        '{"type":"map","values":{"type":"fixed","name":"F","size":3}}',
    ],
    "JSON": [
        '{"type":"object","properties":{"a":{"type":"string","maxLength":3}},"required":["a"]}',
        '{"definitions":{"d":{"items":{"$ref":"#/definitions/d"},"enum":[1,[2]]}},"$ref":"#/definitions/d"}',
        '{"anyOf":[{"const":1},{"not":{"multipleOf":2}}],"patternProperties":{"^a+$":{"minimum":1}}}',
        '{"$schema":"https://json-schema.org/draft/2020-12/schema","prefixItems":[{"$ref":"other"}]}',
        "true",
    ],
    "PROTOBUF": [
        'syntax = "proto3"; message M { string a = 1; repeated M m = 2; oneof o { int32 b = 3; } }',
        'syntax = "proto2"; message M { required int32 a = 1 [default = 3]; enum E { A = 0; } }',
    ],
}
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 2**31, 2**63, 1e308, "", "a", "$ref", "#", "\ud800", "é", [], {}),
    *([[]], {"$ref": "#"}, {"type": "string"}, ["int", "int"], "x" * 300),
)


def mutated(chosen: random.Random, schema_type: str) -> str:
    text = chosen.choice(SCHEMAS[schema_type])
    for _ in range(chosen.choice((0, 1, 1, 2, 4))):
        if schema_type != "PROTOBUF" and chosen.random() < 0.7:
            try:
                text = json.dumps(changed(chosen, json.loads(text)))
            except ValueError:
                continue
        else:
            at = chosen.randrange(len(text) + 1)
            more = chosen.choice(
                ("", '"', "{", "}", "9" * 30, "\0", "\\", " ", text[: chosen.randrange(40)])
            )
            text = text[:at] + more + text[at + chosen.randrange(3) :]
    return text


def changed(chosen: random.Random, value: Any) -> Any:
    """Change one thing somewhere below."""
    if isinstance(value, dict) and value and chosen.random() < 0.8:
        key = chosen.choice(list(value))
        match chosen.randrange(6):
            case 0:
                return {each: value[each] for each in value if each != key}
            case 1:
                return {**value, key: chosen.choice(VALUES)}
            case 2:
                return {
                    **value,
                    chosen.choice(("type", "$ref", "items", "enum", "name", "x")): value[key],
                }
            case _:
                return {**value, key: changed(chosen, value[key])}
    if isinstance(value, list) and value and chosen.random() < 0.8:
        at = chosen.randrange(len(value))
        return [*value[:at], changed(chosen, value[at]), *value[at + chosen.randrange(2) :]]
    return chosen.choice(VALUES)


async def attack(rest: Rest, seed: int, requests: int) -> list[str]:
    """Send random requests; return those that were answered with 500 or worse."""
    chosen, wrong = random.Random(seed), []
    await rest.put("/config", compatibility="FULL_TRANSITIVE")
    for _ in range(requests):
        schema_type = chosen.choice(
            ("AVRO", "AVRO", "AVRO", "JSON", "JSON", "JSON", "JSON", "PROTOBUF")
        )
        subject = f"{schema_type}-{chosen.randrange(3)}"
        references = [
            {"name": chosen.choice(("other", "a.R", "x/y.proto")), "subject": each, "version": -1}
            for each in (f"{schema_type}-{chosen.randrange(3)}",)
            if chosen.random() < 0.2
        ]
        body = {"schemaType": schema_type, "references": references}
        body["schema"] = mutated(chosen, schema_type)
        path = chosen.choice(
            (
                f"/subjects/{subject}/versions",
                f"/subjects/{subject}/versions?normalize=true",
                f"/subjects/{subject}",
                f"/compatibility/subjects/{subject}/versions?verbose=true",
            )
        )
        status, found = await rest.call("POST", path, body)
        if status >= 500:
            wrong.append(f"POST {path} {body}: {found}")
        if chosen.random() < 0.1:
            number = chosen.choice(("1", "2", "latest", "-1", "0", "99999999999", "x"))
            for path in (
                f"/subjects/{subject}/versions/{number}?format=serialized",
                f"/schemas/ids/{number}",
                f"/subjects?offset={number}&limit={number}",
            ):
                status, found = await rest.call("GET", path)
                if status >= 500:
                    wrong.append(f"GET {path}: {found}")
    return wrong


@pytest.mark.parametrize("seed", [1, 2])
async def test_mutated_schemas_are_answered(rest: Rest, seed: int) -> None:
    assert await attack(rest, seed, 80) == []
