"""What DescribeClientQuotas tells of the broker's quotas; answers were compared with Kafka 4.3."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker import Broker

Start = Callable[..., Awaitable[Broker]]
Connect = Callable[[Broker], Awaitable[Any]]

DESCRIBE = 48
EXACT, DEFAULT, ANY = range(3)
USER, CLIENT_ID, IP = "user", "client-id", "ip"
BOTH = {USER, CLIENT_ID}


def component(kind: str, match_type: int, match: str | None = None) -> dict[str, object]:
    return {"entity_type": kind, "match_type": match_type, "match": match}


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, BOTH),
        ([], True, set()),
        ([component(USER, ANY)], True, {USER}),
        ([component(USER, DEFAULT)], False, {USER}),
        ([component(CLIENT_ID, DEFAULT)], True, {CLIENT_ID}),
        ([component(USER, EXACT, "alice")], False, set()),
        ([component(USER, ANY), component(CLIENT_ID, ANY)], False, set()),
        ([component(IP, ANY)], False, set()),
    ],
)
async def test_the_one_quota_is_that_of_users_and_client_ids_by_default(
    start: Start,
    connect: Connect,
    version: int,
    components: list[Any],
    strict: bool,
    found: set[str],
) -> None:
    client = await connect(await start(produce_quota_bytes=1000, fetch_quota_bytes=2000))
    answer = await client.call(DESCRIBE, version, components=components, strict=strict)
    assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
    rates = {"producer_byte_rate": 1000.0, "consumer_byte_rate": 2000.0}
    described = {}
    for entry in answer.entries:
        (entity,) = entry.entity
        assert entity.entity_name is None
        described[entity.entity_type] = {each.key: each.value for each in entry.values}
    assert described == dict.fromkeys(found, rates)


async def test_without_quotas_there_is_nothing_to_tell(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    answer = await client.call(DESCRIBE, 1, components=[], strict=False)
    assert (answer.error_code, answer.entries) == (ErrorCode.none, ())


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([component("", ANY)], ErrorCode.invalid_request),
        ([component("topic", ANY)], ErrorCode.unsupported_version),
        ([component(USER, 3)], ErrorCode.invalid_request),
        ([component(USER, EXACT)], ErrorCode.invalid_request),
        ([component(USER, ANY, "alice")], ErrorCode.invalid_request),
        ([component(USER, DEFAULT, "alice")], ErrorCode.invalid_request),
        ([component(USER, ANY), component(USER, DEFAULT)], ErrorCode.invalid_request),
        ([component(USER, ANY), component(IP, ANY)], ErrorCode.invalid_request),
    ],
)
async def test_a_filter_that_makes_no_sense_is_refused(
    broker: Broker, connect: Connect, components: list[Any], code: ErrorCode
) -> None:
    client = await connect(broker)
    answer = await client.call(DESCRIBE, 1, components=components, strict=False)
    assert (answer.error_code, answer.entries) == (code, None)
    assert answer.error_message
