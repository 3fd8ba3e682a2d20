"""Asks one broker about the settings of topics, and returns its answers as plain values by their path."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import anyio
from kio.static.primitive import i32Timedelta

from demo.processes import give_up_after

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from interop.answers.cases import Case
    from tests.broker.raw_client import RawClient

__all__ = ["Answers", "Asking"]

Answers = dict[tuple[str, ...], object]
"""Plain values by API, case and field: `("CreateTopics", "retention.ms='1'", "error_code")`."""

_CREATE, _DELETE, _DESCRIBE, _ALTER, _INCREMENTAL = 19, 20, 32, 33, 44
_TOPIC: Final = 2
_SET: Final = 0
_TIMEOUT: Final = i32Timedelta.parse(timedelta(minutes=2))
_PATIENCE: Final = 60.0
_POLL: Final = 0.1


def named(case: Case) -> str:
    """A case as one reads it."""
    return " ".join(f"{name}={value!r}" for name, value in case) or "no settings"


class Asking:
    """One broker's answers; it has no other topics than those that this creates and deletes."""

    def __init__(self, client: RawClient) -> None:
        self.answers: Answers = {}
        self._client = client
        self._markers = 0

    async def create(self, cases: Sequence[Case]) -> None:
        """CreateTopics: every case as a check, then for real; and the descriptions of what was created."""
        await self._create("CreateTopics, validate_only", cases, validate_only=True)
        created = await self._create("CreateTopics", cases, validate_only=False)
        await self._until_known()
        await self._describe("DescribeConfigs after CreateTopics", created)
        await self._delete(created)

    async def alter(self, cases: Sequence[Case]) -> None:
        """IncrementalAlterConfigs and AlterConfigs: as a check, then for real; and the descriptions."""
        topics = dict(
            zip(cases, (f"altered-{number}" for number in range(len(cases))), strict=True)
        )
        await self._ask_create([_wanted(topic, ()) for topic in topics.values()])
        for api, key in (("IncrementalAlterConfigs", _INCREMENTAL), ("AlterConfigs", _ALTER)):
            for validate_only in (True, False):
                name = f"{api}, validate_only" if validate_only else api
                resources = [_altered(topic, case, key) for case, topic in topics.items()]
                response = await self._client.call(
                    key, 1, resources=resources, validate_only=validate_only
                )
                codes = {each.resource_name: each for each in response.responses}
                for case, topic in topics.items():
                    self._outcome((name, named(case)), codes[topic])
            await self._until_known()
            await self._describe(f"DescribeConfigs after {api}", topics)
        await self._delete(topics)

    async def _create(
        self, api: str, cases: Sequence[Case], *, validate_only: bool
    ) -> dict[Case, str]:
        topics = {case: f"created-{number}" for number, case in enumerate(cases)}
        wanted = [_wanted(topic, case) for case, topic in topics.items()]
        results = await self._ask_create(wanted, validate_only=validate_only)
        by_name = {each.name: each for each in results}
        for case, topic in topics.items():
            result, path = by_name[topic], (api, named(case))
            self._outcome(path, result)
            self.answers[*path, "num_partitions"] = result.num_partitions
            self.answers[*path, "replication_factor"] = result.replication_factor
            self._configs(path, result.configs)
        return {case: topic for case, topic in topics.items() if not by_name[topic].error_code}

    async def _ask_create(self, topics: Sequence[Any], *, validate_only: bool = False) -> Any:
        response = await self._client.call(
            _CREATE, 7, topics=topics, timeout=_TIMEOUT, validate_only=validate_only
        )
        return response.topics

    async def _describe(self, api: str, topics: dict[Case, str]) -> None:
        for case, result in zip(topics, await self._described(topics.values()), strict=True):
            self._outcome((api, named(case)), result)
            self._configs((api, named(case)), result.configs)

    async def _described(self, topics: Iterable[str]) -> Any:
        resources = [
            {"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": None}
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
        await self._ask_create([_wanted(marker, ())])
        with give_up_after(_PATIENCE, "new topics are not described"):
            while (await self._described([marker]))[0].error_code:  # noqa: ASYNC110  it is another process
                await anyio.sleep(_POLL)
        await self._delete({(): marker})

    async def _delete(self, topics: dict[Case, str]) -> None:
        wanted = [{"name": topic, "topic_id": None} for topic in topics.values()]
        await self._client.call(_DELETE, 6, topics=wanted, timeout=_TIMEOUT)

    def _outcome(self, path: tuple[str, ...], result: Any) -> None:
        self.answers[*path, "error_code"] = result.error_code.name
        self.answers[*path, "error_message"] = result.error_message

    def _configs(self, path: tuple[str, ...], configs: Iterable[Any]) -> None:
        for config in configs:
            for field in ("value", "read_only", "config_source", "is_sensitive", "config_type"):
                if hasattr(config, field):
                    self.answers[*path, "configs", config.name, field] = getattr(config, field)
            if hasattr(config, "synonyms"):
                synonyms = [(each.name, each.value, int(each.source)) for each in config.synonyms]
                self.answers[*path, "configs", config.name, "synonyms"] = synonyms
                self.answers[*path, "configs", config.name, "documented"] = bool(
                    config.documentation
                )


def _wanted(topic: str, case: Case) -> dict[str, Any]:
    configs = [{"name": name, "value": value} for name, value in case]
    return {"name": topic, "num_partitions": 1, "replication_factor": 1, "configs": configs}


def _altered(topic: str, case: Case, key: int) -> dict[str, Any]:
    operation = {"config_operation": _SET} if key == _INCREMENTAL else {}
    configs = [{"name": name, "value": value, **operation} for name, value in case]
    return {"resource_type": _TOPIC, "resource_name": topic, "configs": configs}
