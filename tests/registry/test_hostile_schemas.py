"""Whatever a client sends, the registry answers soon, and what is wrong is the client's fault: 4xx."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from kmr.registry import endpoints

if TYPE_CHECKING:
    from .conftest import Rest, Served

PATH = "/subjects/s/versions"


def doubling(count: int, **more: Any) -> dict[str, Any]:
    """Definitions of which each names the next one twice."""
    definitions = {
        f"d{at}": {
            "type": "object",
            "properties": {
                name: {"$ref": f"#/definitions/d{at + 1}", **more} for name in ("one", "two")
            },
        }
        for at in range(count)
    }
    definitions[f"d{count}"] = {"type": "string"}
    return {"$ref": "#/definitions/d0", "definitions": definitions}


def alternatives(count: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"d{at}": {"anyOf": [{"$ref": f"#/definitions/d{at + 1}"}] * 2} for at in range(count)
    }
    definitions[f"d{count}"] = {"type": "string"}
    return {"anyOf": [{"$ref": "#/definitions/d0"}], "definitions": definitions}


@pytest.mark.parametrize("more", [{}, {"description": "x"}, {"minProperties": 0}])
async def test_definitions_that_name_others_twice_are_compared_once(
    rest: Rest, more: dict[str, Any]
) -> None:
    schema, narrower = doubling(60, **more), doubling(60, **more)
    narrower["definitions"]["d60"] = {"type": "integer"}
    assert await rest.register("s", schema, schemaType="JSON") == 1
    schema["definitions"]["d60"]["title"] = "the same"
    with anyio.fail_after(60):
        body = {"schema": json.dumps(schema), "schemaType": "JSON"}
        status, _ = await rest.call("POST", PATH, body)
        # Keywords beside a reference make it too deep to be decided.
        assert status == (409 if "minProperties" in more else 200)
        body = {"schema": json.dumps(narrower), "schemaType": "JSON"}
        assert await rest.refused("POST", PATH, body) == (409, 409)


async def test_a_value_that_many_alternatives_may_accept_is_not_tried_forever(rest: Rest) -> None:
    await rest.register("s", {"enum": [1, 2]}, schemaType="JSON")
    body = {"schema": json.dumps(alternatives(40)), "schemaType": "JSON"}
    with anyio.fail_after(60):
        status, found = await rest.call("POST", PATH, body)
    assert (status, "TOO_COMPLEX" in found["message"]) == (409, True)


def nested(kind: str, depth: int) -> str:
    match kind:
        case "AVRO":
            return '{"type":"array","items":' * depth + '"int"' + "}" * depth
        case "JSON":
            return '{"items":' * depth + "{}" + "}" * depth
        case _:
            return 'syntax = "proto3"; ' + "message M { " * depth + "}" * depth


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
@pytest.mark.parametrize("depth", [100, 900, 3_000, 100_000])
async def test_nesting_is_refused_or_taken(rest: Rest, kind: str, depth: int) -> None:
    body = {"schema": nested(kind, depth), "schemaType": kind}
    for path in (
        PATH,
        "/subjects/s",
        "/compatibility/subjects/s/versions",
        f"{PATH}?normalize=true",
    ):
        status, found = await rest.call("POST", path, body)
        assert status in (200, 404, 409, 422), found
    status, _ = await rest.call("GET", f"{PATH}/latest?format=serialized")
    assert status in (200, 404)


async def test_a_body_that_is_nested_is_refused(rest: Rest) -> None:
    for text in ('{"schema":' + "[" * 3000, '{"metadata":' + "[" * 100_000, '{"x":' + "{" * 9):
        async with rest.session.post(PATH, data=text.encode()) as answer:
            found = await answer.json(content_type=None)
            assert (answer.status, found["error_code"]) == (400, 400)


REFERENCES = [
    "",
    ".",
    "..",
    "/",
    "a/../b",
    "x" * 300,
    "x/" * 3000,
    "a\0b",
    "default.proto/x",
    "\u00e9",
]


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
@pytest.mark.parametrize("name", REFERENCES)
async def test_references_have_any_name(rest: Rest, kind: str, name: str) -> None:
    text = {"AVRO": '"int"', "JSON": "{}", "PROTOBUF": 'syntax = "proto3"; message M {}'}[kind]
    await rest.register("used", text, schemaType=kind)
    reference = {"name": name, "subject": "used", "version": 1}
    body = {"schema": text, "schemaType": kind, "references": [reference]}
    status, found = await rest.call("POST", PATH, body)
    assert status in (200, 422), found


ODD: list[tuple[str, str]] = [
    ("JSON", '{"multipleOf": 1e-300, "type": "number"}'),
    ("JSON", '{"multipleOf": 1' + "0" * 400 + "}"),
    ("JSON", '{"minimum": 1e999}'),
    ("JSON", '{"minimum": NaN}'),
    ("JSON", '{"minLength": ' + "9" * 5000 + "}"),
    ("JSON", '{"$ref": "#"}'),
    ("JSON", '{"$id": "http://[", "$ref": "x"}'),
    ("JSON", '{"$schema": "http://none", "pattern": "("}'),
    ("JSON", '{"title": "\\ud800"}'),
    ("JSON", '{"items": {"$ref": "#/items"}}'),
    ("AVRO", '{"type": "fixed", "name": "f", "size": ' + "9" * 5000 + "}"),
    ("AVRO", '{"type": "enum", "name": "\\ud800", "symbols": []}'),
    ("AVRO", '{"type": "record", "name": "r", "doc": "\\ud800", "fields": []}'),
    ("AVRO", '{"type": "record", "name": "r", "fields": [{"name": "f", "type": "r"}]}'),
    ("AVRO", '[["int"]]'),
    ("AVRO", "[]"),
    ("AVRO", "null"),
    ("AVRO", '{"type": {"type": {"type": "int"}}}'),
    ("PROTOBUF", "AAAA"),
    ("PROTOBUF", "CgA="),
    ("PROTOBUF", 'syntax = "proto3"; import "default.proto";'),
    ("PROTOBUF", "\u0000"),
]


@pytest.mark.parametrize(("kind", "text"), ODD)
async def test_odd_schemas_are_refused_or_taken(rest: Rest, kind: str, text: str) -> None:
    await rest.register(
        "s",
        {"JSON": '{"type": "number"}'}.get(kind, '"int"'),
        schemaType=kind if kind == "JSON" else "AVRO",
    )
    for path in (PATH, "/subjects/s", "/compatibility/subjects/s/versions?verbose=true"):
        body = {"schema": text, "schemaType": kind}
        status, found = await rest.call("POST", path, body)
        assert status in (200, 404, 409, 422), found


async def test_bodies_have_a_limit_together(
    served: Served, rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "MOST_BODIES_BYTES", 100_000)
    body = {"schema": '"int"' + " " * 60_000}
    sent, may_end = anyio.Event(), anyio.Event()

    async def slowly() -> Any:
        yield b'{"schema": ' + b" " * 60_000
        sent.set()
        await may_end.wait()
        yield b'"1"}'

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: rest.session.post("/subjects/other/versions", data=slowly()))
        await sent.wait()
        for _ in range(3):
            await rest.get("/subjects")  # by now it is received
        assert (await rest.call("POST", PATH, body))[0] == 429
        may_end.set()
    assert (await rest.call("POST", PATH, body))[0] == 200
