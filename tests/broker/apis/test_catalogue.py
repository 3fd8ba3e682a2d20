"""Every API of Kafka is served or listed as unsupported, and a new API is one new file."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

from kmr.broker import apis
from kmr.broker.apis import entities
from kmr.broker.apis.api import Api
from kmr.broker.apis.catalogue import SERVED, UNSUPPORTED, advertised_versions, collect_apis
from kmr.broker.authorization.rules import Operation, Rule, write_rules

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    import pytest

    from kmr.broker import Broker

SERVED_KEYS = {versions.key for versions in advertised_versions(SERVED)}
LISTED = list(chain.from_iterable(entry.apis for entry in UNSUPPORTED))

NEW_API = '''"""UpdateFeatures 0 to 1: refuses every feature."""

from kio.schema.errors import ErrorCode
from kio.schema.update_features.v1 import UpdateFeaturesResponse

from kmr.broker.apis.access import DESCRIBE_CLUSTER
from kmr.broker.apis.api import NO_THROTTLE, api


@api("UpdateFeatures", max_version=1, access=DESCRIBE_CLUSTER)
def _update(context, request):
    return UpdateFeaturesResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.feature_update_failed,
        error_message=None,
        results=(),
    )
'''
UPDATE_FEATURES, API_VERSIONS = 57, 18


def test_every_api_of_kafka_is_served_or_listed_as_unsupported() -> None:
    assert set(api_key_map) - SERVED_KEYS == set(LISTED), "keep apis.catalogue up to date"


def test_nothing_is_listed_twice() -> None:
    assert len(LISTED) == len(set(LISTED))
    assert len({entry.feature for entry in UNSUPPORTED}) == len(UNSUPPORTED)


def test_an_api_ends_at_the_version_that_its_entry_says() -> None:
    served = {versions.key: versions.max_version for versions in advertised_versions(SERVED)}
    for entry in UNSUPPORTED:
        assert entry.newest.items() <= served.items(), entry.feature


def test_every_entry_says_what_clients_get_instead() -> None:
    for entry in UNSUPPORTED:
        assert entry.instead.endswith("."), entry.feature


def test_every_handler_takes_the_newest_request_that_it_serves() -> None:
    for each in SERVED:
        if isinstance(each, Api):
            _, annotated, _ = each.handler.__annotations__.values()
            assert getattr(entities, annotated.removeprefix("entities.")) is each.request, each.name


async def test_a_new_api_is_one_new_file(
    start: Callable[..., Awaitable[Broker]],
    connect: Callable[[Broker], Awaitable[Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The file alone gets it routed, advertised, and refused to clients without the permission."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "update_features.py").write_text(NEW_API)
    monkeypatch.setattr(apis, "__path__", [*apis.__path__, str(package)])
    served = tuple(collect_apis())
    assert [api.name for api in served if api not in SERVED] == ["UpdateFeatures"]
    monkeypatch.setattr("kmr.broker.broker.SERVED", served)

    rules = tmp_path / "acls.json"
    allowed = Rule(principal="User:ANONYMOUS", operations=(Operation.ALTER,), cluster=True)
    denied = Rule(principal="User:admin", operations=(Operation.ALTER,), cluster=True)
    for number, (rule, code) in enumerate(
        [
            (allowed, ErrorCode.feature_update_failed),
            (denied, ErrorCode.cluster_authorization_failed),
        ]
    ):
        write_rules(rules, [rule])
        client = await connect(await start(data_dir=tmp_path / str(number), acl_file=rules))
        versions = {each.api_key: each for each in (await client.call(API_VERSIONS, 0)).api_keys}
        assert versions[UPDATE_FEATURES].max_version == 1
        answer = await client.call(UPDATE_FEATURES, 1, feature_updates=[])
        assert answer.error_code is code
