"""The REST API: paths, parameters, answers and error codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conftest import Rest

RECORD = '{"type":"record","name":"R","fields":[]}'


async def test_a_version_is_shown_with_its_subject_and_id(rest: Rest) -> None:
    await rest.register("s", RECORD)
    found = await rest.get("/subjects/s/versions/1")
    guid = found["guid"]
    version = {"subject": "s", "version": 1, "id": 1, "guid": guid, "schema": RECORD}
    assert found == version
    assert await rest.get(f"/schemas/guids/{guid.upper()}/ids") == [{"context": ".", "id": 1}]
    by_guid = {"id": 1, "guid": guid, "schema": RECORD}
    assert await rest.get(f"/schemas/guids/{guid}") == by_guid
    assert await rest.refused("GET", f"/schemas/guids/{guid[:-1]}/ids") == (404, 40403)
    assert await rest.get("/subjects/s/versions/latest") == version
    assert await rest.get("/subjects/s/versions/-1") == version
    assert await rest.get("/subjects/s/versions/1/schema") == {
        "type": "record",
        "name": "R",
        "fields": [],
    }
    assert await rest.call("POST", "/subjects/s", {"schema": RECORD}) == (200, version)
    assert await rest.get("/schemas") == [version]


async def test_a_schema_is_shown_by_its_id(rest: Rest) -> None:
    await rest.register("s", RECORD)
    await rest.register("t", '"int"')
    assert await rest.get("/schemas/ids/1") == {"schema": RECORD}
    assert await rest.get("/schemas/ids/1?fetchMaxId=true") == {"schema": RECORD, "maxId": 2}
    assert await rest.get("/schemas/ids/2/schema") == "int"
    assert await rest.get("/schemas/ids/1/subjects") == ["s"]
    assert await rest.get("/schemas/ids/1/versions?subject=t") == []
    await rest.delete("/subjects/s")
    assert await rest.get("/schemas/ids/1/subjects") == []
    assert await rest.get("/schemas/ids/1/subjects?deleted=true") == ["s"]


async def test_lists_are_filtered_and_paged(rest: Rest) -> None:
    for subject in ("a-key", "a-value", "b"):
        await rest.register(subject, '"int"')
    await rest.register("b", '"long"')
    await rest.delete("/subjects/a-key")
    assert await rest.get("/subjects") == ["a-value", "b"]
    assert await rest.get("/subjects?deleted=true&subjectPrefix=a") == ["a-key", "a-value"]
    assert await rest.get("/subjects?deletedOnly=true") == ["a-key"]
    assert await rest.get("/subjects?subjectPrefix=:*:") == ["a-value", "b"]
    assert await rest.get("/subjects?offset=1&limit=1") == ["b"]
    found = await rest.get("/schemas?subjectPrefix=b&latestOnly=true")
    assert [each["version"] for each in found] == [2]
    assert len(await rest.get("/schemas?deleted=true")) == 4
    assert await rest.get("/subjects/b/versions?offset=1") == [2]


async def test_a_subject_may_have_any_characters(rest: Rest) -> None:
    await rest.register("a%2Fb%20c%C3%A9%3F", '"int"')
    assert await rest.get("/subjects") == ["a/b cé?"]
    assert await rest.get("/subjects/a%2Fb%20c%C3%A9%3F/versions/") == [1]


async def test_compatibility_is_checked_without_registering(rest: Rest) -> None:
    path = "/compatibility/subjects/s/versions"
    wrong = {"schema": '{"type":"record","name":"R","fields":[{"name":"x","type":"int"}]}'}
    assert await rest.call("POST", f"{path}/latest", wrong) == (200, {"is_compatible": True})
    assert await rest.refused("POST", f"{path}/1", wrong) == (404, 40401)
    await rest.register("s", RECORD)
    assert await rest.refused("POST", f"{path}/2", wrong) == (404, 40402)
    for end in ("/1", "/latest", ""):
        assert await rest.call("POST", path + end, wrong) == (200, {"is_compatible": False})
    _, found = await rest.call("POST", f"{path}/1?verbose=true", wrong)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in found["messages"][0]
    right = {"schema": RECORD}
    _, found = await rest.call("POST", f"{path}/latest?verbose=true", right)
    assert found == {"is_compatible": True, "messages": []}
    assert await rest.get("/subjects/s/versions") == [1]


async def test_the_level_is_global_or_a_subjects_own(rest: Rest) -> None:
    assert await rest.get("/config") == {"compatibilityLevel": "BACKWARD"}
    assert await rest.put("/config", compatibility="full") == {"compatibility": "FULL"}
    assert await rest.put("/config/s", compatibility="NONE") == {"compatibility": "NONE"}
    assert await rest.get("/config/s") == {"compatibilityLevel": "NONE"}
    assert await rest.refused("GET", "/config/t") == (404, 40408)
    assert await rest.get("/config/t?defaultToGlobal=true") == {"compatibilityLevel": "FULL"}
    assert await rest.delete("/config/s") == {"compatibilityLevel": "NONE"}
    assert await rest.refused("DELETE", "/config/s") == (404, 40401)
    assert await rest.delete("/config") == {"compatibilityLevel": "FULL"}
    assert await rest.get("/config") == {"compatibilityLevel": "BACKWARD"}


async def test_the_registry_tells_its_types_contexts_and_mode(rest: Rest) -> None:
    assert set(await rest.get("/schemas/types")) == {"AVRO", "JSON", "PROTOBUF"}
    assert await rest.get("/contexts") == ["."]
    assert await rest.get("/mode") == {"mode": "READWRITE"}
    assert await rest.get("/") == {}


REFUSED: list[tuple[str, str, Any, int, int]] = [
    ("GET", "/subjects/s/versions", None, 404, 40401),
    ("GET", "/subjects/s/versions/1", None, 404, 40401),
    ("GET", "/subjects/known/versions/2", None, 404, 40402),
    ("GET", "/subjects/known/versions/0", None, 422, 42202),
    ("GET", "/subjects/known/versions/first", None, 422, 42202),
    ("GET", "/subjects/known/versions/2147483648", None, 422, 42202),
    ("GET", "/subjects/%00/versions", None, 422, 42208),
    ("GET", "/schemas/ids/9", None, 404, 40403),
    ("GET", "/schemas/ids/x", None, 404, 404),
    ("GET", f"/schemas/ids/{2**40}", None, 404, 404),
    ("GET", f"/schemas/ids/{'9' * 5000}", None, 404, 404),
    ("GET", f"/subjects/known/versions/{'9' * 5000}", None, 422, 42202),
    ("GET", f"/subjects?offset={'9' * 5000}", None, 404, 404),
    ("GET", "/subjects?limit=x", None, 404, 404),
    ("GET", "/nothing", None, 404, 404),
    ("PATCH", "/subjects", None, 405, 405),
    ("POST", "/subjects/s", {"schema": '"int"'}, 404, 40401),
    ("POST", "/subjects/known", {"schema": '"long"'}, 404, 40403),
    ("POST", "/subjects/s/versions", {"schema": "x"}, 422, 42201),
    ("POST", "/subjects/s/versions", {}, 422, 42201),
    ("POST", "/subjects/s/versions", {"schema": '"int"', "schemaType": "XML"}, 422, 42201),
    ("POST", "/subjects/s/versions", {"schema": 1}, 400, 400),
    ("DELETE", "/subjects/s", None, 404, 40401),
    ("DELETE", "/subjects/known/versions/2", None, 404, 40402),
    ("PUT", "/config", {"compatibility": "MOSTLY"}, 422, 42203),
    ("PUT", "/config", {}, 422, 42203),
    ("PUT", "/config", {"compatibility": "NONE", "alias": "x"}, 422, 42205),
    ("PUT", "/mode", {"mode": "WRITEONLY"}, 422, 42204),
    ("PUT", "/mode", {"mode": "IMPORT"}, 422, 42204),
    ("GET", "/subjects/known/metadata", None, 404, 404),
    ("DELETE", "/mode/s", None, 404, 40401),
]


async def test_a_body_that_is_too_large_is_refused(rest: Rest) -> None:
    body = {"schema": " " * 17 * 1024 * 1024}
    assert await rest.refused("POST", "/subjects/s/versions", body) == (413, 413)


async def test_requests_that_cannot_be_served_get_confluents_codes(rest: Rest) -> None:
    await rest.register("known", '"int"')
    found = [
        (method, path, body, *await rest.refused(method, path, body))
        for method, path, body, _, _ in REFUSED
    ]
    assert found == REFUSED
