"""The topics of a broker: look them up, create, change and delete them. `TopicStore` keeps them on disk:

topics/NAME/topic.json  name, id, number of partitions, the topic's own settings; renamed to `deleted` when
                        the topic is deleted: the next start then removes the directory
topics/NAME/INDEX/      the log of one partition
unfinished/ID/          topics that are being created, and remains of deleted ones; emptied at the start
"""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID, uuid4

import structlog
from anyio import Lock, to_thread
from kio.schema.errors import ErrorCode

from ..errors import BrokerError, RequestError
from ..log.disk_work import do_in_thread
from ..log.durable_files import (
    ChecksummedFile,
    make_directory,
    read_checked,
    sync_directory,
    write_checked,
)
from ..log.partition import PartitionLog
from ..log.recovery import report_recovery
from ..log.results import LogError, LogFailed
from .topic import Partition, Topic, check_collision, check_topic_name
from .topic_config import Defaults, checked_log_config, log_config

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
    from pathlib import Path

    from ..log.disk_work import DiskWork
    from ..log.log_config import LogConfig
    from ..settings import BrokerSettings

logger = structlog.get_logger(__name__)

DESCRIPTION = "topic.json"
"""File with a topic's description."""
DELETED_MARK = "deleted"
"""Name of this file once the topic is deleted."""
_CLOSED_AT_ONCE = 8  # logs
P = ParamSpec("P")
T = TypeVar("T")


def _one_at_a_time(
    change: Callable[Concatenate[Topics, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Topics, P], Coroutine[Any, Any, T]]:
    """Run a change after the previous one, to its end even if the request is cancelled meanwhile."""

    async def alone(self: Topics, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async with self._changing:
            return await change(self, *args, **kwargs)

    @wraps(change)
    async def run(self: Topics, /, *args: P.args, **kwargs: P.kwargs) -> T:
        task = asyncio.create_task(alone(self, *args, **kwargs))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody asks
            raise

    return run


async def _nothing(name: str) -> None:
    del name


class Topics:
    """The registry of topics; used in the event loop, one change at a time."""

    def __init__(self, directory: Path, settings: BrokerSettings) -> None:
        """`directory`: the broker's data directory."""
        self.stopping = False
        self.version = 0
        """Grows whenever topics or their numbers of partitions change."""
        self.after_deletion: Callable[[str], Awaitable[None]] = _nothing
        """Called with a topic's name at the end of its deletion."""
        self._settings = settings
        self.defaults = Defaults.of(settings)
        """Configuration of topics without settings of their own."""
        self._store = TopicStore(directory, self.defaults.brokers)
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._internal: dict[str, Topic] = {}
        self._changing = Lock()
        self._changes: set[asyncio.Task[object]] = set()

    # -- looking up --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Topic]:
        """Yield the listed topics: an internal one only once it has records."""
        yield from self._by_name.values()
        for topic in self._internal.values():
            if topic.partitions[0].high_watermark:
                yield topic

    def get(self, name: str) -> Topic | None:
        """Return a topic by its name, internal ones included."""
        return self._by_name.get(name) or self._internal.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        """Return a topic by its id, internal ones included."""
        internal = (each for each in self._internal.values() if each.topic_id == topic_id)
        return self._by_id.get(topic_id) or next(internal, None)

    def partition(self, name: str, index: int) -> Partition | None:
        """Return a partition, None if the topic or the partition does not exist."""
        topic = self.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    @property
    def all(self) -> list[Topic]:
        """All topics, internal ones included, also those without records."""
        return [*self._by_name.values(), *self._internal.values()]

    @property
    def partitions(self) -> list[Partition]:
        """The partitions of all topics, without internal ones: their logs belong to the coordinators."""
        return [each for topic in self._by_name.values() for each in topic.partitions]

    # -- starting and stopping ---------------------------------------------------------------------

    async def open(self, *, clean: bool) -> None:
        """Open all logs. Raises BrokerError if one of them cannot be opened."""
        for topic in await to_thread.run_sync(partial(self._store.open_all, clean=clean)):
            self._show(topic)

    def show_internal(self, topic: Topic) -> None:
        """Show an internal topic to clients; its coordinator closes the log."""
        self._internal[topic.name] = topic
        self.version += 1

    def stop(self) -> None:
        """End all long polls, and let later ones return at once."""
        self.stopping = True
        for topic in self.all:
            for partition in topic.partitions:
                partition.wake()

    async def close(self) -> None:
        """Write, sync and close all logs. Raises LogError or OSError if that fails for one of them."""
        async with self._changing:
            logs = [each.log for each in self.partitions]
            self._by_name.clear()
            self._by_id.clear()
            self._internal.clear()
            await to_thread.run_sync(_close_logs, logs)

    # -- changing ----------------------------------------------------------------------------------

    def check_new(self, name: str, partitions: int, settings: Mapping[str, str]) -> LogConfig:
        """Check a new topic as `create` does; return its configuration. Raises RequestError."""
        if self.get(name) is not None:
            raise RequestError(ErrorCode.topic_already_exists, f"the topic {name!r} already exists")
        check_topic_name(name)
        check_collision(name, self._by_name)
        if partitions < 1:
            raise RequestError(
                ErrorCode.invalid_partitions, f"{partitions} partitions: must be at least 1"
            )
        self._check_room(partitions)
        return checked_log_config(self.defaults.brokers, settings)

    def check_growth(self, name: str, partitions: int) -> Topic:
        """Check an increase as `grow` does; return the topic. Raises RequestError."""
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
        """Check settings as `configure` does; return the configuration. Raises RequestError."""
        self._changeable(name)
        return checked_log_config(self.defaults.brokers, settings)

    @_one_at_a_time
    async def create(
        self, name: str, partitions: int | None = None, settings: Mapping[str, str] | None = None
    ) -> Topic:
        """Create a topic; without `partitions` it gets the default number.

        Raises RequestError if it cannot be created, OSError or LogError if the disk fails.
        """
        count = self._settings.default_partitions if partitions is None else partitions
        own = dict(settings or {})
        self.check_new(name, count, own)
        description = TopicDescription(name, uuid4(), count, own)
        topic = self._show(await to_thread.run_sync(self._store.make, description))
        logger.info(
            "topic created", topic=name, partitions=count, **({"settings": own} if own else {})
        )
        return topic

    async def create_if_missing(self, name: str) -> Topic:
        """Return the topic; create it with the defaults if it does not exist. Raises as `create`."""
        try:
            return self.get(name) or await self.create(name)
        except RequestError as error:
            topic = self.get(name)
            if error.code is ErrorCode.topic_already_exists and topic is not None:
                return topic  # another request created it meanwhile
            raise

    @_one_at_a_time
    async def grow(self, name: str, partitions: int) -> Topic:
        """Add partitions to a topic, up to this number.

        Raises RequestError if it does not exist or would not grow, OSError or LogError if the disk fails.
        """
        topic = self.check_growth(name, partitions)
        first = len(topic.partitions)
        description = TopicDescription(name, topic.topic_id, partitions, dict(topic.settings))
        logs = await to_thread.run_sync(self._store.add_partitions, description, first)
        added = [Partition(name, index, log) for index, log in enumerate(logs, first)]
        topic = self._show(replace(topic, partitions=[*topic.partitions, *added]))
        logger.info("partitions added", topic=name, partitions=partitions)
        return topic

    @_one_at_a_time
    async def configure(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Topic:
        """Replace a topic's own settings by `change` of them, durably.

        Raises RequestError if the topic does not exist or a setting is invalid, the errors of `change`, and
        OSError if the disk fails.
        """
        topic = self._changeable(name)
        settings = dict(change(topic.settings))
        config = self.check_settings(name, settings)
        description = TopicDescription(name, topic.topic_id, len(topic.partitions), settings)
        await to_thread.run_sync(self._store.rewrite, description)
        for partition in topic.partitions:
            partition.log.update_config(config)
        topic = self._show(replace(topic, config=config, settings=settings))
        logger.info("topic configured", topic=name, settings=settings)
        return topic

    @_one_at_a_time
    async def delete(self, name: str) -> None:
        """Delete a topic with all its records.

        Raises RequestError if it does not exist or is internal, OSError or LogError if the disk fails.
        """
        topic = self._changeable(name)
        del self._by_name[name]
        del self._by_id[topic.topic_id]
        self.version += 1
        for partition in topic.partitions:
            partition.close()
        logs = [partition.log for partition in topic.partitions]
        await to_thread.run_sync(self._store.remove, name, logs)
        await self.after_deletion(name)
        logger.info("topic deleted", topic=name)

    @_one_at_a_time
    async def clean(self, partition: Partition, work: DiskWork[T]) -> T:
        """Make a log smaller: `work` is one of its changes in steps. Raises LogFailed, and its errors."""
        if partition.closed:
            raise LogFailed("the topic was deleted")
        return await do_in_thread(work)

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
        existing = sum(len(each.partitions) for each in self._by_name.values())
        if existing + more > self._settings.max_partitions:
            raise RequestError(
                ErrorCode.invalid_partitions,
                f"{more} partitions in addition to {existing} are more than max_partitions"
                f" ({self._settings.max_partitions})",
            )

    def _show(self, topic: Topic) -> Topic:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self.version += 1
        return topic


class TopicDescription(ChecksummedFile, frozen=True):
    """The content of topic.json."""

    name: str
    topic_id: UUID
    partitions: int
    settings: dict[str, str]


class TopicStore:
    """The directory of all topics; its methods wait for the disk: call them in threads."""

    def __init__(self, directory: Path, defaults: LogConfig) -> None:
        """`directory`: the broker's data directory; `defaults`: for settings that a topic does not have."""
        self._root = directory / "topics"
        self._unfinished = directory / "unfinished"
        self._defaults = defaults

    def open_all(self, *, clean: bool) -> list[Topic]:
        """Finish interrupted deletions, then open all logs.

        Raises BrokerError if one of them cannot be opened; then none is open.
        """
        topics: list[Topic] = []
        directory = self._root
        try:
            shutil.rmtree(self._unfinished, ignore_errors=True)
            self._unfinished.mkdir()
            make_directory(self._root)
            for directory in sorted(self._root.iterdir()):
                if (directory / DELETED_MARK).exists():
                    self._discard(directory)
                else:
                    topics.append(self._open(directory, clean=clean))
        except BaseException as error:
            _abandon(each.log for topic in topics for each in topic.partitions)
            if isinstance(error, Exception):  # whatever is in the files: the user gets a reason
                expected = isinstance(error, LogError | OSError)
                reason = error if expected else f"{directory}: {error!r}"
                raise BrokerError(
                    f"the topics in {self._root} cannot be opened: {reason}"
                ) from error
            raise
        return topics

    def make(self, description: TopicDescription) -> Topic:
        """Create a topic: in `unfinished` first, so that a crash never leaves half of it."""
        config = log_config(self._defaults, description.settings.items())
        unfinished = self._unfinished / description.topic_id.hex
        unfinished.mkdir()
        for index in range(description.partitions):
            (unfinished / str(index)).mkdir()
        write_checked(unfinished / DESCRIPTION, description)
        directory = self._root / description.name
        if (directory / DELETED_MARK).exists():  # its removal failed
            self._discard(directory)
        unfinished.rename(directory)
        try:
            sync_directory(self._root)
            return self._open_logs(directory, description, config, clean=False)
        except BaseException:  # for example too many open files
            directory.rename(unfinished)
            raise

    def add_partitions(self, description: TopicDescription, first: int) -> list[PartitionLog]:
        """Create and open the logs of new partitions, from `first` on; `description` is the new one.

        The partitions exist once the new description is written. A crash or an error before leaves empty
        logs, which the next attempt uses. They stay after an error, because the description may name them:
        it does if only its name could not be synced.
        """
        directory = self._root / description.name
        config = log_config(self._defaults, description.settings.items())
        logs: list[PartitionLog] = []
        try:
            for index in range(first, description.partitions):
                log = PartitionLog.open(directory / str(index), config, clean=False)
                logs.append(log)
            self.rewrite(description)
        except BaseException:
            _abandon(logs)
            raise
        return logs

    def rewrite(self, description: TopicDescription) -> None:
        """Replace a topic's description, durably."""
        write_checked(self._root / description.name / DESCRIPTION, description)

    def remove(self, name: str, logs: Iterable[PartitionLog]) -> None:
        """Delete a topic and its open logs."""
        directory = self._root / name
        (directory / DESCRIPTION).rename(directory / DELETED_MARK)
        sync_directory(directory)
        for log in logs:
            log.delete()
        self._discard(directory)

    def _discard(self, directory: Path) -> None:
        """Remove a deleted topic: move it to `unfinished` first, so that no part of it looks like a topic."""
        doomed = self._unfinished / uuid4().hex
        directory.rename(doomed)
        sync_directory(self._root)
        shutil.rmtree(doomed)

    def _open(self, directory: Path, *, clean: bool) -> Topic:
        path = directory / DESCRIPTION
        try:
            description = read_checked(path, TopicDescription)
            config = log_config(self._defaults, description.settings.items())
        except (OSError, ValueError, RequestError) as error:
            raise BrokerError(
                f"{directory} is not a topic: {error}; move it away, or restore {path.name}"
            ) from error
        return self._open_logs(directory, description, config, clean=clean)

    def _open_logs(
        self, directory: Path, description: TopicDescription, config: LogConfig, *, clean: bool
    ) -> Topic:
        logs: list[PartitionLog] = []
        try:
            for index in range(description.partitions):
                log_directory = directory / str(index)
                if not log_directory.exists():
                    raise BrokerError(
                        f"{log_directory} is missing: the log of a partition; restore it, or make an"
                        " empty directory to go on without its records"
                    )
                logs.append(PartitionLog.open(log_directory, config, clean=clean))
                report_recovery(logs[-1], topic=description.name, partition=index)
        except BaseException:
            _abandon(logs)
            raise
        return Topic(
            name=description.name,
            topic_id=description.topic_id,
            partitions=[Partition(description.name, i, log) for i, log in enumerate(logs)],
            config=config,
            settings=description.settings,
        )


def _close_logs(logs: Iterable[PartitionLog]) -> None:
    """Close all logs, several at a time, because each waits for the disk; then raise the first error."""
    with ThreadPoolExecutor(_CLOSED_AT_ONCE) as threads:
        closings = [threads.submit(log.close) for log in logs]
    for each in closings:
        each.result()


def _abandon(logs: Iterable[PartitionLog]) -> None:
    """Close logs after an error, which is raised, and not those of the closings."""
    with suppress(LogError, OSError):
        _close_logs(logs)
