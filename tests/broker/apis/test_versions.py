from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker import Broker

Connect = Callable[[Broker], Awaitable[Any]]
API_VERSIONS = 18


async def test_the_list_names_every_api_once(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    response = await client.call(
        API_VERSIONS, 4, client_software_name="kmr", client_software_version="0.1"
    )
    keys = [each.api_key for each in response.api_keys]
    assert response.error_code is ErrorCode.none
    assert keys == sorted(set(keys))
    assert all(0 <= each.min_version <= each.max_version for each in response.api_keys)


@pytest.mark.parametrize(("name", "version"), [("", "1"), ("kmr", ""), ("a b", "1"), ("-a", "1")])
async def test_software_without_a_proper_name_is_refused(
    broker: Broker, connect: Connect, name: str, version: str
) -> None:
    client = await connect(broker)
    response = await client.call(
        API_VERSIONS, 3, client_software_name=name, client_software_version=version
    )
    assert response.error_code is ErrorCode.invalid_request
    assert response.api_keys


async def test_old_clients_need_not_name_themselves(broker: Broker, connect: Connect) -> None:
    client = await connect(broker)
    for version in range(3):
        assert (await client.call(API_VERSIONS, version)).error_code is ErrorCode.none
