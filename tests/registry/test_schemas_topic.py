"""The topic `_schemas`: durable, compacted, and the only source of the registry's state."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaProducer

from kmr.broker import Broker, BrokerError, BrokerSettings, Fault
from kmr.broker.cli.registry import registry_beside
from kmr.broker.log.records import read_records
from kmr.registry.records import SchemaKey, SchemaValue, encode_record

from .conftest import Served

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .conftest import Rest, Start


def written(broker: Broker) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """The keys and values of `_schemas`."""
    partition = broker.topics.partition("_schemas", 0)
    assert partition is not None
    return [
        (json.loads(record.key or b""), json.loads(record.value) if record.value else None)
        for header, data in partition.log.batches()
        for record in read_records(data, header)
    ]


async def write(served: Served, *records: tuple[bytes | None, bytes | None]) -> None:
    """Produce records to `_schemas` as another program does."""
    servers = served.broker.bootstrap_servers
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for key, value in records:
            await producer.send_and_wait("_schemas", value, key, partition=0)


async def test_the_topic_is_created_compacted_with_one_partition(served: Served) -> None:
    topic = served.broker.topics.get("_schemas")
    assert topic is not None
    assert len(topic.partitions) == 1
    assert topic.settings == {"cleanup.policy": "compact"}


async def test_a_request_does_not_wait_for_the_end_of_a_fetch(served: Served, rest: Rest) -> None:
    await rest.register("s", '{"type": "int"}')
    served.broker.faults.add(Fault(api="Fetch", delay=60))
    async with asyncio.timeout(20):
        for _ in range(3):  # the first ones may come before the fetch that does not end
            await rest.refused("POST", "/subjects/s/versions", {"schema": '{"type": "string"}'})


async def test_changes_are_records_in_confluents_format(served: Served, rest: Rest) -> None:
    await rest.register("s", '{"type": "int"}')
    await rest.put("/config/s", compatibility="FULL")
    await rest.delete("/subjects/s")
    await rest.delete("/subjects/s?permanent=true")
    key = {"keytype": "SCHEMA", "subject": "s", "version": 1, "magic": 1}
    value = {"subject": "s", "version": 1, "id": 1, "schema": '"int"', "deleted": False}
    config, deletion = (
        {"keytype": kind, "subject": "s", "magic": 0} for kind in ("CONFIG", "DELETE_SUBJECT")
    )
    assert written(served.broker) == [
        ({"keytype": "NOOP", "magic": 0}, None),
        (key, value),
        (config, {"subject": "s", "compatibilityLevel": "FULL"}),
        (deletion, {"subject": "s", "version": 1}),
        (config, None),
        (key, None),
        (deletion, None),
    ]


async def test_everything_is_there_after_a_restart(
    start: Start, open_rest: Callable[..., Rest], tmp_path: Path
) -> None:
    settings = BrokerSettings(data_dir=tmp_path / "data", port=0, fsync="always")
    async with Broker(settings) as broker, registry_beside(broker, 0) as registry:
        rest = open_rest(Served(broker, registry))
        assert await rest.register("s", '"int"') == 1
        assert await rest.register("s", '"long"') == 2
        await rest.put("/config", compatibility="NONE")
        await rest.put("/mode/s", mode="READONLY")
        await rest.delete("/config")
        await rest.put("/config/t", compatibility="FORWARD")
    rest = open_rest(await start())
    assert await rest.get("/subjects/s/versions") == [1, 2]
    assert await rest.get("/config") == {"compatibilityLevel": "BACKWARD"}
    assert await rest.get("/config/t") == {"compatibilityLevel": "FORWARD"}
    assert await rest.get("/mode/s") == {"mode": "READONLY"}
    assert await rest.register("t", '"boolean"') == 3


async def test_what_another_program_produces_to_the_topic_counts(
    served: Served, rest: Rest
) -> None:
    value = SchemaValue(subject="s", version=4, id=40, schema='"int"')
    await write(served, encode_record(SchemaKey("s", 4), value), (b'{"keytype":"UNHEARD"}', b"{}"))
    assert await rest.register("t", '"long"') == 41
    assert (await rest.get("/subjects/s/versions/latest"))["id"] == 40


async def test_a_deleted_topic_fails_requests(served: Served, rest: Rest) -> None:
    await served.broker.topics.delete("_schemas")
    body = {"schema": '"int"'}
    assert await rest.refused("POST", "/subjects/s/versions", body) == (500, 50001)
    assert await rest.refused("GET", "/subjects") == (500, 50001)


async def test_a_schema_that_is_too_large_for_the_topic_is_refused(
    start: Start, open_rest: Any
) -> None:
    rest = open_rest(await start(message_max_bytes=1_000))
    await rest.register("first", '"long"')
    schema = {"type": "enum", "name": "E", "symbols": [f"S{each}" for each in range(300)]}
    body = {"schema": json.dumps(schema)}
    assert await rest.refused("POST", "/subjects/s/versions", body) == (413, 413)
    assert await rest.get("/subjects") == ["first"]
    assert await rest.register("s", '"int"') == 2  # a change that failed keeps no later one from it


@pytest.mark.parametrize(
    ("partitions", "settings", "reason"),
    [(2, {"cleanup.policy": "compact"}, "has 2 partitions"), (1, {}, "is not compacted")],
)
async def test_a_topic_that_could_lose_schemas_is_refused(
    start: Start, tmp_path: Path, partitions: int, settings: dict[str, str], reason: str
) -> None:
    async with Broker(BrokerSettings(data_dir=tmp_path / "data", port=0)) as broker:
        await broker.topics.create("_schemas", partitions, settings)
    with pytest.raises(BrokerError, match=reason):
        await start()


async def test_records_that_no_registry_writes_do_no_harm(
    served: Served, rest: Rest, start: Start
) -> None:
    def schema(subject: str, version: int, number: int, text: str, *references: str) -> Any:
        found = [{"name": each, "subject": each, "version": 1} for each in references]
        key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
        value = {"subject": subject, "version": version, "id": number, "schema": text}
        more = {"references": found, "schemaType": "JSON"}
        return json.dumps(key).encode(), json.dumps({**value, **more}).encode()

    await write(
        served,
        schema("itself", 1, 1, '{"$ref": "itself"}', "itself"),
        schema("one", 1, 2, '{"$ref": "other"}', "other"),
        schema("other", 1, 3, '{"$ref": "one"}', "one"),
        schema("odd", 1, 4, "{}", ""),
        schema("huge", 1, 2**40, "{}"),
        (b'{"keytype":"CONFIG","magic":0}', b'{"compatibilityLevel":"BOGUS"}'),
        (b'{"keytype":"MODE","subject":"huge","magic":0}', b'{"mode":"IMPORT"}'),
    )
    assert await rest.register("new", "{}", schemaType="JSON") == 5
    assert await rest.get("/config") == {"compatibilityLevel": "BACKWARD"}
    assert await rest.refused("GET", "/subjects/huge/versions") == (404, 40401)
    body = {"schema": '{"type": "string"}', "schemaType": "JSON"}
    for subject in ("itself", "one", "other"):
        path = f"/subjects/{subject}/versions"
        assert (await rest.get(f"{path}/latest"))["subject"] == subject
        assert await rest.refused("POST", path, body) == (422, 42201)
        referring = {**body, "references": [{"name": "n", "subject": subject, "version": 1}]}
        assert await rest.refused("POST", "/subjects/new/versions", referring) == (422, 42201)
        await rest.put(f"/config/{subject}", compatibility="NONE")
        assert await rest.register(subject, "{}", schemaType="JSON") == 5
    assert await rest.delete("/subjects/itself/versions/1") == 1
