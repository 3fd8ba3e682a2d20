"""The topics of a broker: which there are, on disk and in memory, created and deleted.

topics/NAME/topic.json  name, id, number of partitions, the topic's own settings;
                        renamed to `deleted` when the topic is, which is then finished at the start
topics/NAME/INDEX/      the log of one partition
unfinished/ID/          topics that are being made; emptied at the start
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import msgspec
import structlog
from anyio import Lock, to_thread
from kio.schema.errors import ErrorCode

from broker.errors import BrokerError, RequestError
from broker.files import write_durably
from broker.log.errors import LogError
from broker.log.files import sync_directory
from broker.log.partition import PartitionLog
from broker.partition import Partition
from broker.topic_config import default_log_config, log_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from broker.log.config import LogConfig
    from broker.settings import BrokerSettings

__all__ = ["INTERNAL_TOPICS", "Topic", "Topics", "check_topic_name"]

logger = structlog.get_logger(__name__)

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""Names that belong to the broker: clients can neither create nor delete them, nor produce to them."""

_DESCRIPTION = "topic.json"
_DELETED = "deleted"
_MAX_NAME = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class _Description(msgspec.Struct, frozen=True):
    """The content of topic.json."""

    name: str
    topic_id: UUID
    partitions: int
    settings: dict[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Topic:
    """A topic; `settings` are its own, `config` is what holds for its logs."""

    name: str
    topic_id: UUID
    partitions: Sequence[Partition]
    config: LogConfig
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


def check_topic_name(name: str) -> None:
    """Raises RequestError (INVALID_TOPIC_EXCEPTION) unless clients may create a topic of this name."""
    if not name:
        problem = "is empty"
    elif name in {".", ".."}:
        problem = "must not be . or .."
    elif len(name) > _MAX_NAME:
        problem = f"has {len(name)} characters, more than {_MAX_NAME}"
    elif not _NAME.fullmatch(name):
        problem = "has characters other than letters, digits, . _ -"
    elif name in INTERNAL_TOPICS:
        problem = "belongs to the broker"
    else:
        return
    shown = name if len(name) <= _MAX_NAME else f"{name[:32]}..."
    raise RequestError(ErrorCode.invalid_topic_exception, f"the topic name {shown!r} {problem}")


class Topics:
    """The registry. Looked up and changed in the event loop; files are made and removed in threads."""

    def __init__(self, directory: Path, settings: BrokerSettings) -> None:
        """`directory`: the broker's data directory."""
        self.stopping = False
        self._root = directory / "topics"
        self._unfinished = directory / "unfinished"
        self._settings = settings
        self._defaults = default_log_config(settings)
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._changes = Lock()

    # -- looking up --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def partition(self, name: str, index: int) -> Partition | None:
        topic = self._by_name.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    @property
    def partitions(self) -> list[Partition]:
        """The partitions of all topics."""
        return [each for topic in self._by_name.values() for each in topic.partitions]

    # -- starting and stopping ---------------------------------------------------------------------

    async def open(self, *, clean: bool) -> None:
        """Open all logs. Raises BrokerError when one of them cannot be used."""
        try:
            for topic in await to_thread.run_sync(partial(self._open_all, clean=clean)):
                self._register(topic)
        except (LogError, OSError) as error:
            raise BrokerError(f"the topics in {self._root} cannot be opened: {error}") from error

    def stop(self) -> None:
        """Answer all long polls; later ones do not wait."""
        self.stopping = True
        for partition in self.partitions:
            partition.wake()

    async def close(self) -> None:
        """Write, sync and close all logs. Raises LogError when one of them could not be."""
        partitions = self.partitions
        self._by_name.clear()
        self._by_id.clear()
        await to_thread.run_sync(_close_logs, partitions)

    # -- changing ----------------------------------------------------------------------------------

    def check_new(self, name: str, partitions: int, settings: Mapping[str, str]) -> LogConfig:
        """What `create` checks. Raises RequestError."""
        check_topic_name(name)
        if name in self._by_name:
            raise RequestError(ErrorCode.topic_already_exists, f"the topic {name!r} already exists")
        if partitions < 1:
            raise RequestError(
                ErrorCode.invalid_partitions, f"{partitions} partitions: must be at least 1"
            )
        existing = len(self.partitions)
        if existing + partitions > self._settings.max_partitions:
            raise RequestError(
                ErrorCode.invalid_partitions,
                f"{partitions} partitions in addition to {existing} are more than max_partitions"
                f" ({self._settings.max_partitions})",
            )
        return log_config(self._defaults, settings.items())

    async def create(
        self, name: str, partitions: int | None = None, settings: Mapping[str, str] | None = None
    ) -> Topic:
        """Create a topic; without `partitions` it gets the default number.

        Raises RequestError when it must not be created, OSError or LogError when the disk fails.
        """
        count = self._settings.default_partitions if partitions is None else partitions
        own = dict(settings or {})
        async with self._changes:
            self.check_new(name, count, own)
            description = _Description(name, uuid4(), count, own)
            topic = await to_thread.run_sync(self._make, description)
            self._register(topic)
        logger.info(
            "topic created", topic=name, partitions=count, **({"settings": own} if own else {})
        )
        return topic

    async def create_if_missing(self, name: str) -> Topic:
        """The topic, created with the defaults if it does not exist; errors as `create`."""
        try:
            return self._by_name.get(name) or await self.create(name)
        except RequestError as error:
            topic = self._by_name.get(name)
            if error.code is ErrorCode.topic_already_exists and topic is not None:
                return topic  # somebody else created it meanwhile
            raise

    async def delete(self, name: str) -> None:
        """Delete a topic with all its records.

        Raises RequestError when there is none or it is internal, OSError when the disk fails.
        """
        async with self._changes:
            topic = self._by_name.get(name)
            if topic is None:
                raise RequestError(
                    ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}"
                )
            if topic.is_internal:
                raise RequestError(
                    ErrorCode.invalid_topic_exception, f"the topic {name!r} belongs to the broker"
                )
            del self._by_name[name]
            del self._by_id[topic.topic_id]
            for partition in topic.partitions:
                partition.close()
            await to_thread.run_sync(self._remove, topic)
        logger.info("topic deleted", topic=name)

    def _register(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    # -- files (in threads) ------------------------------------------------------------------------

    def _open_all(self, *, clean: bool) -> list[Topic]:
        shutil.rmtree(self._unfinished, ignore_errors=True)
        self._unfinished.mkdir()
        self._root.mkdir(exist_ok=True)
        topics: list[Topic] = []
        try:
            for directory in sorted(self._root.iterdir()):
                if (directory / _DELETED).exists():
                    shutil.rmtree(directory)
                else:
                    topics.append(self._open(directory, clean=clean))
        except BaseException:
            _close_logs([each for topic in topics for each in topic.partitions])
            raise
        return topics

    def _open(self, directory: Path, *, clean: bool) -> Topic:
        path = directory / _DESCRIPTION
        try:
            description = msgspec.json.decode(path.read_bytes(), type=_Description)
            config = log_config(self._defaults, description.settings.items())
        except (OSError, msgspec.DecodeError, RequestError) as error:
            raise BrokerError(
                f"{directory} is not a topic: {error}; move it away, or restore {path.name}"
            ) from error
        partitions: list[Partition] = []
        try:
            for index in range(description.partitions):
                log = PartitionLog.open(directory / str(index), config, clean=clean)
                _report_recovery(description.name, index, log)
                partitions.append(Partition(description.name, index, log))
        except BaseException:
            _close_logs(partitions)
            raise
        return Topic(
            description.name, description.topic_id, partitions, config, description.settings
        )

    def _make(self, description: _Description) -> Topic:
        """Complete elsewhere first, so that a topic is never half there."""
        unfinished = self._unfinished / description.topic_id.hex
        unfinished.mkdir()
        for index in range(description.partitions):
            (unfinished / str(index)).mkdir()
        write_durably(unfinished / _DESCRIPTION, msgspec.json.encode(description))
        directory = self._root / description.name
        if (directory / _DELETED).exists():  # it could not be removed completely
            shutil.rmtree(directory)
        unfinished.rename(directory)
        try:
            sync_directory(self._root)
            return self._open(directory, clean=False)
        except BaseException:  # too many open files, say
            directory.rename(unfinished)
            raise

    def _remove(self, topic: Topic) -> None:
        directory = self._root / topic.name
        (directory / _DESCRIPTION).rename(directory / _DELETED)
        sync_directory(directory)
        for partition in topic.partitions:
            partition.log.delete()
        shutil.rmtree(directory)


def _close_logs(partitions: Sequence[Partition]) -> None:
    """Close them all, whatever happens; then raise the first error."""
    failure: LogError | OSError | None = None
    for partition in partitions:
        try:
            partition.log.close()
        except (LogError, OSError) as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _report_recovery(topic: str, index: int, log: PartitionLog) -> None:
    report = log.recovery
    if report.lost_durable_records:
        logger.error(
            "records that were on disk are gone",
            topic=topic,
            partition=index,
            records=report.lost_durable_records,
            truncated_at=report.truncated_at,
            reason=report.reason,
            set_aside=report.set_aside,
        )
    elif report.lost_data:
        logger.warning(
            "the log ended in an incomplete write, which was cut off",
            topic=topic,
            partition=index,
            truncated_at=report.truncated_at,
            truncated_bytes=report.truncated_bytes,
            reason=report.reason,
            set_aside=report.set_aside,
        )
