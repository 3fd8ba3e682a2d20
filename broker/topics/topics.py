"""The topics of a broker: found, created, deleted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import structlog
from anyio import Lock, to_thread
from kio.schema.errors import ErrorCode

from broker.errors import RequestError
from broker.topics.config import Defaults, log_config
from broker.topics.names import check_collision, check_topic_name
from broker.topics.partition import Partition
from broker.topics.store import TopicDescription, TopicStore, close_logs
from broker.topics.topic import Topic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
    from pathlib import Path
    from uuid import UUID

    from broker.log.config import LogConfig
    from broker.settings import BrokerSettings
    from broker.topics.store import StoredTopic

__all__ = ["Topic", "Topics"]

logger = structlog.get_logger(__name__)

T = TypeVar("T")


async def _nothing(name: str) -> None:
    del name


class Topics:
    """The registry: looked up and changed in the event loop; one change at a time."""

    def __init__(self, directory: Path, settings: BrokerSettings) -> None:
        """`directory`: the broker's data directory."""
        self.stopping = False
        self.after_deletion: Callable[[str], Awaitable[None]] = _nothing
        """Called with the name of a topic whose deletion is then complete."""
        self._settings = settings
        self.defaults = Defaults.of(settings)
        """What holds for topics without settings of their own."""
        self._store = TopicStore(directory, self.defaults.brokers)
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._internal: dict[str, Topic] = {}
        self._changing = Lock()
        self._changes: set[asyncio.Task[object]] = set()

    # -- looking up --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Topic]:
        """All that are listed: the internal ones too, once there is something in them."""
        yield from self._by_name.values()
        for topic in self._internal.values():
            if topic.partitions[0].high_watermark:
                yield topic

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name) or self._internal.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        internal = (each for each in self._internal.values() if each.topic_id == topic_id)
        return self._by_id.get(topic_id) or next(internal, None)

    def partition(self, name: str, index: int) -> Partition | None:
        topic = self.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    @property
    def partitions(self) -> list[Partition]:
        """The partitions of all topics, without the internal ones: those belong to the coordinators."""
        return [each for topic in self._by_name.values() for each in topic.partitions]

    # -- starting and stopping ---------------------------------------------------------------------

    async def open(self, *, clean: bool) -> None:
        """Open all logs. Raises BrokerError when one of them cannot be used."""
        for topic in await to_thread.run_sync(partial(self._store.open_all, clean=clean)):
            self._register(topic)

    def show_internal(self, topic: Topic) -> None:
        """Let clients find a topic that the broker keeps itself; whoever keeps it also closes its log."""
        self._internal[topic.name] = topic

    def stop(self) -> None:
        """Answer all long polls; later ones do not wait."""
        self.stopping = True
        for topic in (*self._by_name.values(), *self._internal.values()):
            for partition in topic.partitions:
                partition.wake()

    async def close(self) -> None:
        """Write, sync and close all logs. Raises LogError when one of them could not be."""
        async with self._changing:
            logs = [each.log for each in self.partitions]
            self._by_name.clear()
            self._by_id.clear()
            self._internal.clear()
            await to_thread.run_sync(close_logs, logs)

    # -- changing ----------------------------------------------------------------------------------

    def check_new(self, name: str, partitions: int, settings: Mapping[str, str]) -> LogConfig:
        """What `create` checks. Raises RequestError."""
        if self.get(name) is not None:
            raise RequestError(ErrorCode.topic_already_exists, f"the topic {name!r} already exists")
        check_topic_name(name)
        check_collision(name, self._by_name)
        if partitions < 1:
            raise RequestError(
                ErrorCode.invalid_partitions, f"{partitions} partitions: must be at least 1"
            )
        self._check_room(partitions)
        return log_config(self.defaults.brokers, settings.items())

    def check_growth(self, name: str, partitions: int) -> Topic:
        """What `grow` checks; the topic as it is. Raises RequestError."""
        topic = self._changeable(name)
        count = len(topic.partitions)
        if partitions <= count:
            raise RequestError(
                ErrorCode.invalid_partitions,
                f"the topic {name!r} has {count} partitions, which cannot become {partitions}:"
                " partitions can only be added",
            )
        self._check_room(partitions - count)
        return topic

    def check_settings(self, name: str, settings: Mapping[str, str]) -> LogConfig:
        """What `configure` checks. Raises RequestError."""
        self._changeable(name)
        return log_config(self.defaults.brokers, settings.items())

    async def create(
        self, name: str, partitions: int | None = None, settings: Mapping[str, str] | None = None
    ) -> Topic:
        """Create a topic; without `partitions` it gets the default number.

        Raises RequestError when it must not be created, OSError or LogError when the disk fails.
        """
        count = self._settings.default_partitions if partitions is None else partitions
        return await self._unbroken(self._create(name, count, dict(settings or {})))

    async def create_if_missing(self, name: str) -> Topic:
        """The topic, created with the defaults if it does not exist; errors as `create`."""
        try:
            return self.get(name) or await self.create(name)
        except RequestError as error:
            topic = self.get(name)
            if error.code is ErrorCode.topic_already_exists and topic is not None:
                return topic  # somebody else created it meanwhile
            raise

    async def grow(self, name: str, partitions: int) -> Topic:
        """Add partitions to a topic, so that it has this many.

        Raises RequestError when it is not there or would not grow, OSError or LogError when the disk
        fails.
        """
        return await self._unbroken(self._grow(name, partitions))

    async def configure(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Topic:
        """Replace a topic's own settings by what `change` makes of them, from now on and durably.

        Raises RequestError when the topic is not there or a setting makes no sense, whatever
        `change` raises, and OSError when the disk fails.
        """
        return await self._unbroken(self._configure(name, change))

    async def delete(self, name: str) -> None:
        """Delete a topic with all its records.

        Raises RequestError when there is none or it is internal, OSError or LogError when the disk
        fails.
        """
        await self._unbroken(self._delete(name))

    async def _create(self, name: str, partitions: int, settings: dict[str, str]) -> Topic:
        async with self._changing:
            self.check_new(name, partitions, settings)
            description = TopicDescription(name, uuid4(), partitions, settings)
            topic = self._register(await to_thread.run_sync(self._store.make, description))
        own = {"settings": settings} if settings else {}
        logger.info("topic created", topic=name, partitions=partitions, **own)
        return topic

    async def _grow(self, name: str, partitions: int) -> Topic:
        async with self._changing:
            topic = self.check_growth(name, partitions)
            first = len(topic.partitions)
            description = TopicDescription(name, topic.topic_id, partitions, dict(topic.settings))
            logs = await to_thread.run_sync(self._store.add_partitions, description, first)
            added = [Partition(name, index, log) for index, log in enumerate(logs, first)]
            topic = self._replace(topic, partitions=[*topic.partitions, *added])
        logger.info("partitions added", topic=name, partitions=partitions)
        return topic

    async def _configure(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Topic:
        async with self._changing:
            topic = self._changeable(name)
            settings = dict(change(topic.settings))
            config = self.check_settings(name, settings)
            count = len(topic.partitions)
            description = TopicDescription(name, topic.topic_id, count, settings)
            await to_thread.run_sync(self._store.rewrite, description)
            for partition in topic.partitions:
                partition.log.update_config(config)
            topic = self._replace(topic, config=config, settings=settings)
        logger.info("topic configured", topic=name, settings=settings)
        return topic

    async def _delete(self, name: str) -> None:
        async with self._changing:
            topic = self._changeable(name)
            del self._by_name[name]
            del self._by_id[topic.topic_id]
            for partition in topic.partitions:
                partition.close()
            logs = [partition.log for partition in topic.partitions]
            await to_thread.run_sync(self._store.remove, name, logs)
            await self.after_deletion(name)
        logger.info("topic deleted", topic=name)

    def _changeable(self, name: str) -> Topic:
        topic = self.get(name)
        if topic is None:
            raise RequestError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        if topic.is_internal:
            raise RequestError(
                ErrorCode.invalid_topic_exception, f"the topic {name!r} belongs to the broker"
            )
        return topic

    def _check_room(self, more: int) -> None:
        existing = len(self.partitions)
        if existing + more > self._settings.max_partitions:
            raise RequestError(
                ErrorCode.invalid_partitions,
                f"{more} partitions in addition to {existing} are more than max_partitions"
                f" ({self._settings.max_partitions})",
            )

    async def _unbroken(self, change: Coroutine[Any, Any, T]) -> T:
        """Run a change to its end, also when the client that asked for it is gone."""
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    def _register(self, stored: StoredTopic) -> Topic:
        description, config, logs = stored
        topic = Topic(
            name=description.name,
            topic_id=description.topic_id,
            partitions=[Partition(description.name, i, log) for i, log in enumerate(logs)],
            config=config,
            settings=description.settings,
        )
        return self._show(topic)

    def _replace(self, topic: Topic, **changes: Any) -> Topic:
        return self._show(replace(topic, **changes))

    def _show(self, topic: Topic) -> Topic:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        return topic
