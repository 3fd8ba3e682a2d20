"""Asks one broker about the settings of topics, and returns its answers as plain values by their path."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import anyio
from kio.static.primitive import i32Timedelta

from demo.processes import give_up_after
from interop.answers.cases import named
from interop.answers.edits import SET

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from interop.answers.cases import Case
    from interop.answers.edits import Edit
    from tests.broker.raw_client import RawClient

__all__ = ["Answers", "Asking"]

Answers = dict[tuple[str, ...], object]
"""Plain values by API, case and field: `("CreateTopics", "retention.ms='1'", "error_code")`."""

_CREATE, _DELETE, _DESCRIBE, _ALTER, _INCREMENTAL = 19, 20, 32, 33, 44
_NAMES: Final = {
    _DESCRIBE: "DescribeConfigs",
    _ALTER: "AlterConfigs",
    _INCREMENTAL: "IncrementalAlterConfigs",
}
_TOPIC: Final = 2
_TIMEOUT: Final = i32Timedelta.parse(timedelta(minutes=2))
_PATIENCE: Final = 60.0
_POLL: Final = 0.1


class Asking:
    """One broker's answers; it has no other topics than those that this creates and deletes."""

    def __init__(self, client: RawClient) -> None:
        self.answers: Answers = {}
        self._client = client
        self._markers = 0

    async def create(self, cases: Sequence[Case]) -> None:
        """CreateTopics: every case as a check, then for real; and the descriptions of what was created."""
        topics = {named(case): f"created-{number}" for number, case in enumerate(cases)}
        wanted = [_wanted(topics[named(case)], case) for case in cases]
        for api in ("CreateTopics, validate_only", "CreateTopics"):
            results = await self._create(wanted, validate_only=api != "CreateTopics")
            for case, topic in topics.items():
                self._created((api, case), results[topic])
        made = {case: topic for case, topic in topics.items() if not results[topic].error_code}
        await self._describe("DescribeConfigs after CreateTopics", made)
        await self._delete(made.values())

    async def alter(self, cases: Sequence[Case]) -> None:
        """IncrementalAlterConfigs and AlterConfigs: as a check, then for real; and the descriptions."""
        topics = {named(case): f"altered-{number}" for number, case in enumerate(cases)}
        await self._create([_wanted(topic, ()) for topic in topics.values()])
        for key, operation in ((_INCREMENTAL, {"config_operation": SET}), (_ALTER, {})):
            resources = [
                _altered(topics[named(case)], [{**each, **operation} for each in _configs(case)])
                for case in cases
            ]
            await self._alter(key, _NAMES[key], topics, resources)
        await self._delete(topics.values())

    async def edit(self, edits: Sequence[Edit]) -> None:
        """IncrementalAlterConfigs with every operation, on topics with settings; and the descriptions."""
        topics = {str(edit): f"edited-{number}" for number, edit in enumerate(edits)}
        await self._create([_wanted(topics[str(edit)], edit.own) for edit in edits])
        resources = [
            _altered(
                topics[str(edit)],
                [
                    {"name": name, "config_operation": operation, "value": value}
                    for name, operation, value in edit.changes
                ],
            )
            for edit in edits
        ]
        await self._alter(_INCREMENTAL, "edits", topics, resources)
        await self._delete(topics.values())

    async def refuse(self, resources: Iterable[tuple[int, str]]) -> None:
        """DescribeConfigs and both alterations of resources without settings, each in its own request."""
        config = {"name": "retention.ms", "value": "1"}
        fields: Mapping[int, Mapping[str, Any]] = {
            _DESCRIBE: {"configuration_keys": None},
            _ALTER: {"configs": [config]},
            _INCREMENTAL: {"configs": [{**config, "config_operation": SET}]},
        }
        for kind, name in resources:
            for key, values in fields.items():
                asked = {"resource_type": kind, "resource_name": name, **values}
                response = await self._client.call(key, 1, resources=[asked])
                (result,) = response.results if key == _DESCRIBE else response.responses
                self._outcome((_NAMES[key], f"resource {kind} {name!r}"), result)

    async def choose(self, choices: Iterable[Sequence[str] | None]) -> None:
        """DescribeConfigs of some settings of a topic."""
        await self._create([_wanted("described", ())])
        await self._until_known()
        for keys in choices:
            (result,) = await self._described(["described"], keys)
            self._description(("DescribeConfigs", f"settings {keys}"), result)
        await self._delete(["described"])

    # -- requests

    async def _create(
        self, topics: Sequence[Any], *, validate_only: bool = False
    ) -> dict[str, Any]:
        response = await self._client.call(
            _CREATE, 7, topics=topics, timeout=_TIMEOUT, validate_only=validate_only
        )
        return {each.name: each for each in response.topics}

    async def _alter(
        self, key: int, name: str, topics: Mapping[str, str], resources: Sequence[Any]
    ) -> None:
        for validate_only in (True, False):
            response = await self._client.call(
                key, 1, resources=resources, validate_only=validate_only
            )
            results = {each.resource_name: each for each in response.responses}
            for case, topic in topics.items():
                api = f"{name}, validate_only" if validate_only else name
                self._outcome((api, case), results[topic])
        await self._describe(f"DescribeConfigs after {name}", topics)

    async def _describe(self, api: str, topics: Mapping[str, str]) -> None:
        await self._until_known()
        for case, result in zip(topics, await self._described(topics.values()), strict=True):
            self._description((api, case), result)

    async def _described(self, topics: Iterable[str], keys: Sequence[str] | None = None) -> Any:
        resources = [
            {"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": keys}
            for topic in topics
        ]
        response = await self._client.call(
            _DESCRIBE, 4, resources=resources, include_synonyms=True, include_documentation=True
        )
        return response.results

    async def _until_known(self) -> None:
        """Apache Kafka's broker learns of changes in their order, and after they are acknowledged."""
        self._markers += 1
        marker = f"marker-{self._markers}"
        await self._create([_wanted(marker, ())])
        with give_up_after(_PATIENCE, "new topics are not described"):
            while (await self._described([marker]))[0].error_code:  # noqa: ASYNC110  another process
                await anyio.sleep(_POLL)
        await self._delete([marker])

    async def _delete(self, topics: Iterable[str]) -> None:
        wanted = [{"name": topic, "topic_id": None} for topic in topics]
        await self._client.call(_DELETE, 6, topics=wanted, timeout=_TIMEOUT)

    # -- answers

    def _created(self, path: tuple[str, ...], result: Any) -> None:
        self._outcome(path, result)
        for name in ("num_partitions", "replication_factor"):
            self.answers[*path, name] = getattr(result, name)
        for config in result.configs:
            self._config((*path, "configs", config.name), config)

    def _description(self, path: tuple[str, ...], result: Any) -> None:
        self._outcome(path, result)
        for config in result.configs:
            at = (*path, "configs", config.name)
            self._config(at, config)
            synonyms = [(each.name, each.value, int(each.source)) for each in config.synonyms]
            self.answers[*at, "synonyms"] = synonyms
            self.answers[*at, "config_type"] = config.config_type
            self.answers[*at, "documented"] = bool(config.documentation)

    def _config(self, path: tuple[str, ...], config: Any) -> None:
        for name in ("value", "read_only", "config_source", "is_sensitive"):
            self.answers[*path, name] = getattr(config, name)

    def _outcome(self, path: tuple[str, ...], result: Any) -> None:
        self.answers[*path, "error_code"] = result.error_code.name
        self.answers[*path, "error_message"] = result.error_message


def _configs(case: Case) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in case]


def _wanted(topic: str, case: Case) -> dict[str, Any]:
    configs = _configs(case)
    return {"name": topic, "num_partitions": 1, "replication_factor": 1, "configs": configs}


def _altered(topic: str, configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"resource_type": _TOPIC, "resource_name": topic, "configs": list(configs)}
