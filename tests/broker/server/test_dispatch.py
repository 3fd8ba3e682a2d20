from collections.abc import Awaitable, Callable
from struct import pack, unpack_from
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from kmr.broker import Broker
from kmr.broker.apis.api import Api
from kmr.broker.apis.catalogue import SERVED, advertised_versions
from kmr.broker.apis.records import log_offsets
from kmr.broker.protocol.messages import default_message, has_field

Connect = Callable[[Broker], Awaitable[Any]]

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, LIST_GROUPS = 0, 1, 2, 3, 18, 16

ADVERTISED = {
    0: (0, 13),  # Produce
    1: (4, 18),  # Fetch
    2: (1, 11),  # ListOffsets
    3: (0, 13),  # Metadata
    8: (2, 10),  # OffsetCommit
    9: (1, 10),  # OffsetFetch
    10: (0, 6),  # FindCoordinator
    11: (0, 9),  # JoinGroup
    12: (0, 4),  # Heartbeat
    13: (0, 5),  # LeaveGroup
    14: (0, 5),  # SyncGroup
    15: (0, 6),  # DescribeGroups
    16: (0, 5),  # ListGroups
    17: (0, 1),  # SaslHandshake
    18: (0, 4),  # ApiVersions
    19: (2, 7),  # CreateTopics
    20: (1, 6),  # DeleteTopics
    21: (0, 2),  # DeleteRecords
    22: (0, 5),  # InitProducerId
    23: (2, 4),  # OffsetForLeaderEpoch
    24: (0, 5),  # AddPartitionsToTxn
    25: (0, 4),  # AddOffsetsToTxn
    26: (0, 5),  # EndTxn
    28: (0, 5),  # TxnOffsetCommit
    32: (1, 4),  # DescribeConfigs
    33: (0, 2),  # AlterConfigs
    35: (1, 5),  # DescribeLogDirs
    36: (0, 2),  # SaslAuthenticate
    37: (0, 3),  # CreatePartitions
    42: (0, 2),  # DeleteGroups
    44: (0, 1),  # IncrementalAlterConfigs
    47: (0, 0),  # OffsetDelete
    55: (0, 2),  # DescribeQuorum
    60: (0, 2),  # DescribeCluster
    68: (0, 1),  # ConsumerGroupHeartbeat
    69: (0, 1),  # ConsumerGroupDescribe
    74: (0, 1),  # ListConfigResources
    75: (0, 0),  # DescribeTopicPartitions
}
"""Versions that the usual clients were tested with; changing one is a decision."""

KIO_VERSIONS = [
    (key, version)
    for key, (low, high) in ADVERTISED.items()
    for version in range(low, high + 1)
    if (key, version) not in {(PRODUCE, 0), (PRODUCE, 1), (PRODUCE, 2)}
]

# Fields of older versions that handlers, written against the newest one, never see or set.
DROPPED = {
    "retention_time",
}


def test_the_advertised_versions_are_those_that_clients_were_tried_with() -> None:
    assert {key: (low, high) for key, low, high in advertised_versions(SERVED)} == ADVERTISED


def test_no_version_is_served_twice() -> None:
    served = [(api.key, v) for api in SERVED for v in range(api.min_version, api.max_version + 1)]
    assert len(served) == len(set(served))
    assert len(served) == sum(high - low + 1 for low, high in ADVERTISED.values())


def field_names(entity_type: Any) -> set[str]:
    """Names of an entity's fields and of all nested ones, with their paths."""
    names = set()
    for name, field in entity_type.__dataclass_fields__.items():
        names.add(name)
        nested = field.type
        while not hasattr(nested, "__dataclass_fields__") and getattr(nested, "__args__", None):
            nested = next(each for each in nested.__args__ if each is not type(None))
        if hasattr(nested, "__dataclass_fields__"):
            names |= {f"{name}.{each}" for each in field_names(nested)}
    return names


CONVERTED = [each for each in SERVED if isinstance(each, Api)]


@pytest.mark.parametrize("api", CONVERTED, ids=lambda api: f"{api.key}-{api.max_version}")
def test_no_field_of_an_older_version_is_lost(api: Any) -> None:
    for version in range(api.min_version, api.max_version):
        for load, newest in (
            (load_request_schema, api.request),
            (load_response_schema, api.response),
        ):
            lost = field_names(load(api.key, version)) - field_names(newest)
            assert lost <= DROPPED


@pytest.mark.parametrize(("key", "version"), KIO_VERSIONS)
async def test_every_version_of_every_api_is_answered_in_that_version(
    broker: Broker, connect: Connect, key: int, version: int
) -> None:
    client = await connect(broker)
    request = default_message(load_request_schema(key, version))
    if key == PRODUCE:
        request = client.message(key, version, acks=1)
    response = await client.ask(request)  # fails unless all bytes are understood
    assert type(response).__version__ == version
    assert (await client.call(API_VERSIONS, 0)).error_code is ErrorCode.none


@pytest.mark.parametrize("version", [5, 99, -1, 32767])
async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(
    broker: Broker, connect: Connect, version: int
) -> None:
    client = await connect(broker)
    payload = pack(">hhih", API_VERSIONS, version, 77, -1) + b"\x00\x05kmr\x00\x00"
    await client.send_bytes(pack(">i", len(payload)) + payload)
    frame = await client.receive_frame()
    assert unpack_from(">i", frame)[0] == 77
    response, size = entity_reader(ApiVersionsResponse)(frame, 4)
    assert 4 + size == len(frame)
    assert response.error_code is ErrorCode.unsupported_version
    assert {each.api_key: (each.min_version, each.max_version) for each in response.api_keys} == (
        ADVERTISED
    )
    assert (await client.call(API_VERSIONS, 0)).error_code is ErrorCode.none


async def test_a_bug_in_a_handler_becomes_an_error_code_where_there_is_one(
    broker: Broker,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    client = await connect(broker)
    monkeypatch.setattr("kmr.broker.coordinators.group_coordinator.GroupCoordinator.groups", fail)
    response = await client.call(LIST_GROUPS, 4)
    assert response.error_code is ErrorCode.unknown_server_error
    assert "ZeroDivisionError: a bug" in capsys.readouterr().out
    assert (await client.call(API_VERSIONS, 0)).error_code is ErrorCode.none


async def test_a_bug_in_a_handler_closes_the_connection_where_there_is_no_error_code(
    broker: Broker,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    assert not has_field(load_response_schema(LIST_OFFSETS, 7), "error_code")
    await broker.topics.create("t")
    client = await connect(broker)
    monkeypatch.setattr(log_offsets, "_find", fail)
    partition = {"partition_index": 0, "timestamp": -1}
    topics = [{"name": "t", "partitions": [partition]}]
    await client.send(client.message(LIST_OFFSETS, 7, topics=topics))
    assert await client.is_closed_by_broker()
    assert "ZeroDivisionError: a bug" in capsys.readouterr().out


async def test_the_client_id_may_change_between_requests(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    for client_id in (b"one", b"two", b""):
        header = pack(">hhih", API_VERSIONS, 0, 1, len(client_id)) + client_id
        await client.send_bytes(pack(">i", len(header)) + header)
        await client.receive_frame()
