"""Topics on disk. All of this waits for the disk: it is called in threads.

topics/NAME/topic.json  name, id, number of partitions, the topic's own settings;
                        renamed to `deleted` when the topic is, which is then finished at the start
topics/NAME/INDEX/      the log of one partition
unfinished/ID/          topics that are being made, and what is left of deleted ones; emptied at the
                        start
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID, uuid4

from broker.errors import BrokerError, RequestError
from broker.files import Checked, read_checked, write_checked
from broker.log.errors import LogError
from broker.log.files import make_directory, sync_directory
from broker.log.partition import PartitionLog
from broker.recovery import report_recovery
from broker.topics.config import log_config

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from broker.log.config import LogConfig

__all__ = [
    "DELETED_MARK",
    "DESCRIPTION",
    "StoredTopic",
    "TopicDescription",
    "TopicStore",
    "close_logs",
]

DESCRIPTION = "topic.json"
"""File that describes a topic."""
DELETED_MARK = "deleted"
"""Its name once the topic is deleted."""


class TopicDescription(Checked, frozen=True):
    """The content of topic.json."""

    name: str
    topic_id: UUID
    partitions: int
    settings: dict[str, str]


class StoredTopic(NamedTuple):
    """A topic whose logs are open."""

    description: TopicDescription
    config: LogConfig
    logs: list[PartitionLog]


class TopicStore:
    """The directory of all topics."""

    def __init__(self, directory: Path, defaults: LogConfig) -> None:
        """`directory`: the broker's data directory; `defaults`: for what topics do not set."""
        self._root = directory / "topics"
        self._unfinished = directory / "unfinished"
        self._defaults = defaults

    def open_all(self, *, clean: bool) -> list[StoredTopic]:
        """Open all logs, after finishing what a crash interrupted.

        Raises BrokerError when one of them cannot be used; then none is open.
        """
        topics: list[StoredTopic] = []
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
            close_logs(log for topic in topics for log in topic.logs)
            if isinstance(error, LogError | OSError):
                raise BrokerError(
                    f"the topics in {self._root} cannot be opened: {error}"
                ) from error
            raise
        return topics

    def make(self, description: TopicDescription) -> StoredTopic:
        """Create a topic: elsewhere first, so that it is never half there."""
        unfinished = self._unfinished / description.topic_id.hex
        unfinished.mkdir()
        for index in range(description.partitions):
            (unfinished / str(index)).mkdir()
        write_checked(unfinished / DESCRIPTION, description)
        directory = self._root / description.name
        if (directory / DELETED_MARK).exists():  # it could not be removed completely
            self._discard(directory)
        unfinished.rename(directory)
        try:
            sync_directory(self._root)
            return self._open(directory, clean=False)
        except BaseException:  # too many open files, say
            directory.rename(unfinished)
            raise

    def add_partitions(self, description: TopicDescription, first: int) -> list[PartitionLog]:
        """Open the logs of new partitions, from `first` on, of a topic described as it will be.

        They are there once the new description is: what a crash leaves before is empty, and is taken
        when the same partitions are added again.
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
            for log in logs:
                log.delete()
            raise
        return logs

    def rewrite(self, description: TopicDescription) -> None:
        """Describe a topic anew, durably."""
        write_checked(self._root / description.name / DESCRIPTION, description)

    def remove(self, name: str, logs: Iterable[PartitionLog]) -> None:
        """Delete a topic and its logs, which are open."""
        directory = self._root / name
        (directory / DESCRIPTION).rename(directory / DELETED_MARK)
        sync_directory(directory)
        for log in logs:
            log.delete()
        self._discard(directory)

    def _discard(self, directory: Path) -> None:
        """Remove what is left of a deleted topic: elsewhere, so that no part is ever taken for one."""
        doomed = self._unfinished / uuid4().hex
        directory.rename(doomed)
        sync_directory(self._root)
        shutil.rmtree(doomed)

    def _open(self, directory: Path, *, clean: bool) -> StoredTopic:
        path = directory / DESCRIPTION
        try:
            description = read_checked(path, TopicDescription)
            config = log_config(self._defaults, description.settings.items())
        except (OSError, ValueError, RequestError) as error:
            raise BrokerError(
                f"{directory} is not a topic: {error}; move it away, or restore {path.name}"
            ) from error
        logs: list[PartitionLog] = []
        try:
            for index in range(description.partitions):
                log_directory = directory / str(index)
                if not log_directory.exists():
                    raise BrokerError(
                        f"{log_directory} is missing, where the records of a partition were: restore"
                        " it, or make an empty directory to go on without them"
                    )
                logs.append(PartitionLog.open(log_directory, config, clean=clean))
                report_recovery(logs[-1], topic=description.name, partition=index)
        except BaseException:
            close_logs(logs)
            raise
        return StoredTopic(description, config, logs)


def close_logs(logs: Iterable[PartitionLog]) -> None:
    """Close them all, whatever happens; then raise the first error."""
    failure: LogError | OSError | None = None
    for log in logs:
        try:
            log.close()
        except (LogError, OSError) as error:
            failure = failure or error
    if failure is not None:
        raise failure
