"""The rules of registering, deleting and configuring."""

from __future__ import annotations

import json
from typing import Any

import anyio

from .conftest import Rest, text_of

INT = {"name": "x", "type": "int"}
TEXT = {"name": "y", "type": "string"}


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


async def test_the_same_schema_has_the_same_id_in_every_subject(rest: Rest) -> None:
    assert await rest.register("a", record(INT)) == 1
    assert await rest.register("b", '"string"') == 2
    assert await rest.register("b2", json.dumps(record(INT), indent=2)) == 1
    assert await rest.register("a", record(INT)) == 1
    assert await rest.get("/schemas/ids/1/versions") == [
        {"subject": "a", "version": 1},
        {"subject": "b2", "version": 1},
    ]


async def test_ids_of_simultaneous_registrations_differ(rest: Rest) -> None:
    ids: list[int] = []

    async def register(number: int) -> None:
        ids.append(await rest.register(f"s{number}", record(name=f"R{number % 5}")))

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(register, number)
    assert sorted(set(ids)) == [1, 2, 3, 4, 5]
    assert len(ids) == 20


async def test_an_incompatible_schema_is_refused_with_reasons(rest: Rest) -> None:
    await rest.register("s", record(INT))
    status, found = await rest.call(
        "POST", "/subjects/s/versions", {"schema": text_of(record(INT, TEXT))}
    )
    assert (status, found["error_code"]) == (409, 409)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in found["message"]
    await rest.put("/config/s", compatibility="FORWARD")
    assert await rest.register("s", record(INT, TEXT)) == 2
    await rest.put("/config/s", compatibility="NONE")
    assert await rest.register("s", '"long"') == 3


async def test_a_transitive_level_looks_at_all_versions(rest: Rest) -> None:
    await rest.put("/config", compatibility="none")
    await rest.register("s", record(INT))
    await rest.register("s", record(TEXT))
    body = {"schema": text_of(record({**TEXT, "doc": "new"}))}
    await rest.put("/config", compatibility="BACKWARD_TRANSITIVE")
    assert await rest.refused("POST", "/subjects/s/versions", body) == (409, 409)
    await rest.put("/config", compatibility="BACKWARD")
    assert await rest.register("s", body["schema"]) == 3


async def test_a_version_is_deleted_softly_then_permanently(rest: Rest) -> None:
    await rest.register("s", '"int"')
    await rest.register("s", '"long"')
    path = "/subjects/s/versions/2"
    assert await rest.refused("DELETE", f"{path}?permanent=true") == (404, 40407)
    assert await rest.delete("/subjects/s/versions/latest") == 2
    assert await rest.refused("DELETE", path) == (404, 40406)
    assert await rest.refused("GET", path) == (404, 40402)
    assert (await rest.get(f"{path}?deleted=true"))["deleted"] is True
    assert (await rest.get("/schemas/ids/2"))["schema"] == '"long"'
    assert await rest.delete(f"{path}?permanent=true") == 2
    assert await rest.refused("GET", f"{path}?deleted=true") == (404, 40402)
    assert await rest.refused("GET", "/schemas/ids/2") == (404, 40403)
    assert await rest.register("t", '"boolean"') == 3


async def test_a_subject_is_deleted_softly_then_permanently(rest: Rest) -> None:
    await rest.register("s", '"int"')
    await rest.register("s", '"long"')
    await rest.put("/config/s", compatibility="NONE")
    assert await rest.refused("DELETE", "/subjects/s?permanent=true") == (404, 40405)
    assert await rest.delete("/subjects/s") == [1, 2]
    assert await rest.refused("DELETE", "/subjects/s") == (404, 40404)
    assert await rest.refused("GET", "/subjects/s/versions") == (404, 40401)
    assert await rest.refused("GET", "/config/s") == (404, 40408)
    assert await rest.get("/subjects") == []
    assert await rest.get("/subjects?deleted=true") == ["s"]
    assert await rest.register("s", '"int"') == 1
    assert await rest.get("/subjects/s/versions") == [3]
    assert await rest.delete("/subjects/s") == [3]
    assert await rest.delete("/subjects/s?permanent=true") == [1, 2, 3]
    assert await rest.refused("DELETE", "/subjects/s") == (404, 40401)


async def test_deleted_versions_do_not_count_for_compatibility(rest: Rest) -> None:
    await rest.register("s", record(INT))
    await rest.delete("/subjects/s/versions/1")
    assert await rest.register("s", record(TEXT)) == 2


async def test_references_are_resolved_and_protect_what_they_refer_to(rest: Rest) -> None:
    await rest.register("address", record(INT, name="Address"))
    user = record({"name": "home", "type": "Address"}, name="User")
    missing = {"name": "Address", "subject": "address", "version": 2}
    body = {"schema": text_of(user), "references": [missing]}
    assert await rest.refused("POST", "/subjects/user/versions", body) == (422, 42201)
    reference = {"name": "Address", "subject": "address", "version": -1}
    user_id = await rest.register("user", user, references=[reference])
    found = await rest.get("/subjects/user/versions/latest")
    assert found["references"] == [{**reference, "version": 1}]
    assert await rest.get("/subjects/address/versions/1/referencedby") == [user_id]
    group = record({"name": "user", "type": "User"}, name="Group")
    of_user = {"name": "User", "subject": "user", "version": 1}
    assert await rest.register("group", group, references=[of_user]) == 3
    assert await rest.refused("DELETE", "/subjects/address") == (422, 42206)
    assert await rest.refused("DELETE", "/subjects/address/versions/1") == (422, 42206)
    await rest.delete("/subjects/group")
    await rest.delete("/subjects/user")
    assert await rest.delete("/subjects/address") == [1]


async def test_normalized_schemas_are_equal_in_any_order_of_their_properties(rest: Rest) -> None:
    one = {"type": "int", "b": 1, "a": 2}
    other = {"type": "int", "a": 2, "b": 1}
    assert await rest.register("s", one) == 1
    assert await rest.register("s", other) == 2
    status, found = await rest.call(
        "POST", "/subjects/t/versions?normalize=true", {"schema": text_of(one)}
    )
    assert (status, found["id"]) == (200, 2)
    await rest.put("/config", compatibility="BACKWARD", normalize=True)
    assert await rest.register("u", one) == 2


async def test_what_this_registry_does_not_have_is_refused(rest: Rest) -> None:
    refused: tuple[dict[str, Any], ...] = (
        {"metadata": {"properties": {"owner": "me"}}},
        {"metadata": {"properties": [1]}},
        {"ruleSet": {"domainRules": []}},
        {"id": 7},
        {"version": 2},
    )
    for more in refused:
        body = {"schema": '"int"', **more}
        assert await rest.refused("POST", "/subjects/s/versions", body) == (422, 42205)
    nothing = {"metadata": None, "ruleSet": None, "id": -1, "version": -1}
    assert await rest.register("s", '"int"', **nothing) == 1


async def test_a_read_only_subject_refuses_changes(rest: Rest) -> None:
    await rest.register("s", '"int"')
    await rest.put("/mode/s", mode="readonly")
    body = {"schema": '"int"'}
    assert await rest.refused("POST", "/subjects/s/versions", body) == (422, 42205)
    assert await rest.refused("DELETE", "/subjects/s") == (422, 42205)
    assert await rest.register("t", '"int"') == 1
    await rest.put("/mode", mode="READONLY_OVERRIDE")
    assert await rest.refused("POST", "/subjects/t/versions", body) == (422, 42205)
    await rest.put("/mode", mode="READWRITE")
    assert await rest.delete("/mode/s") == {"mode": "READONLY"}
    assert await rest.refused("GET", "/mode/s") == (404, 40409)
    assert await rest.get("/mode/s?defaultToGlobal=true") == {"mode": "READWRITE"}
