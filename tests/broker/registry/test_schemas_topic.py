"""The topic `_schemas`: durable, compacted, and the only source of the registry's state."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from kmr.broker import Broker, BrokerError, BrokerSettings
from kmr.broker.log.records import NewRecord, build_batch, read_records
from kmr.broker.registry.records import SchemaKey, SchemaValue, encode_record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from .conftest import Rest

    Start = Callable[..., Awaitable[Broker]]


def written(broker: Broker) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """The keys and values of `_schemas`."""
    partition = broker.topics.partition("_schemas", 0)
    assert partition is not None
    return [
        (json.loads(record.key or b""), json.loads(record.value) if record.value else None)
        for header, data in partition.log.batches()
        for record in read_records(data, header)
    ]


async def test_the_topic_is_created_compacted_with_one_partition(served: Broker) -> None:
    topic = served.topics.get("_schemas")
    assert topic is not None
    assert len(topic.partitions) == 1
    assert topic.settings == {"cleanup.policy": "compact"}


async def test_changes_are_records_in_confluents_format(served: Broker, rest: Rest) -> None:
    await rest.register("s", '{"type": "int"}')
    await rest.put("/config/s", compatibility="FULL")
    await rest.delete("/subjects/s")
    await rest.delete("/subjects/s?permanent=true")
    key = {"keytype": "SCHEMA", "subject": "s", "version": 1, "magic": 1}
    value = {"subject": "s", "version": 1, "id": 1, "schema": '"int"', "deleted": False}
    config, deletion = (
        {"keytype": kind, "subject": "s", "magic": 0} for kind in ("CONFIG", "DELETE_SUBJECT")
    )
    assert written(served) == [
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
    settings = BrokerSettings(data_dir=tmp_path / "data", port=0, registry_port=0, fsync="always")
    async with Broker(settings) as broker:
        rest = open_rest(broker)
        assert await rest.register("s", '"int"') == 1
        assert await rest.register("s", '"long"') == 2
        await rest.put("/config", compatibility="NONE")
        await rest.put("/mode/s", mode="READONLY")
        await rest.delete("/config")
        await rest.put("/config/t", compatibility="FORWARD")
    rest = open_rest(await start(registry_port=0))
    assert await rest.get("/subjects/s/versions") == [1, 2]
    assert await rest.get("/config") == {"compatibilityLevel": "BACKWARD"}
    assert await rest.get("/config/t") == {"compatibilityLevel": "FORWARD"}
    assert await rest.get("/mode/s") == {"mode": "READONLY"}
    assert await rest.register("t", '"boolean"') == 3


async def test_what_another_program_produces_to_the_topic_counts_at_once(
    served: Broker, rest: Rest, connect: Any
) -> None:
    value = SchemaValue(subject="s", version=4, id=40, schema='"int"')
    records = [
        NewRecord(*encode_record(SchemaKey("s", 4), value)),
        NewRecord(b'{"keytype":"UNHEARD"}', b"{}"),
    ]
    client = await connect(served)
    partition = {"index": 0, "records": bytes(build_batch(records))}
    topic = {"name": "_schemas", "partition_data": [partition]}
    await client.call(0, 8, acks=-1, timeout=timedelta(seconds=5), topic_data=[topic])
    assert (await rest.get("/subjects/s/versions/latest"))["id"] == 40
    assert await rest.register("t", '"long"') == 41


async def test_a_deleted_topic_fails_requests(served: Broker, rest: Rest) -> None:
    await served.topics.delete("_schemas")
    assert await rest.refused("GET", "/subjects") == (500, 50001)


async def test_a_schema_that_is_too_large_for_the_topic_is_refused(
    start: Start, open_rest: Any
) -> None:
    rest = open_rest(await start(registry_port=0, message_max_bytes=1_000))
    schema = {"type": "enum", "name": "E", "symbols": [f"S{each}" for each in range(300)]}
    body = {"schema": json.dumps(schema)}
    assert await rest.refused("POST", "/subjects/s/versions", body) == (500, 50001)
    assert await rest.get("/subjects") == []


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
        await start(registry_port=0)
