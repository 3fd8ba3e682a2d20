"""Examine the data directory of a stopped broker, without writing (`kmr broker doctor`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..coordinators.offset_store import (
    ConsumerGroupKey,
    OffsetKey,
    decode_consumer_group,
    decode_group,
    decode_offset,
    decode_offsets_key,
)
from ..coordinators.state_log import MalformedRecord
from ..coordinators.transaction_store import decode_transaction, decode_transactional_id
from ..errors import RequestError
from ..log.checkup import Checkup, check_log
from ..log.durable_files import read_checked
from ..log.log_config import LogConfig
from ..log.records import BatchError, read_records
from ..log.results import LogCorrupt
from ..storage.data_directory import ProducerIds, lock_out_brokers, read_meta
from ..topics.topic_config import log_config
from ..topics.topics import DELETED_MARK, DESCRIPTION, TopicDescription

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..log.checkup import FoundBatch


@dataclass(slots=True, kw_only=True)
class DirectoryCheckup(Checkup):
    """The checkup of a data directory; `clean`: the last broker stopped cleanly."""

    clean: bool
    topics: int = 0
    partitions: int = 0

    @property
    def is_damaged(self) -> bool:
        return any(finding.kind == "damage" for finding in self.findings)


def examine(data_dir: Path) -> DirectoryCheckup:
    """Check all files of a data directory.

    Raises BrokerError if it is no data directory, has another format, or is used by a broker, and OSError
    if a file cannot be read.
    """
    read_meta(data_dir)
    with lock_out_brokers(data_dir):
        return _examine(data_dir)


def _examine(data_dir: Path) -> DirectoryCheckup:
    clean = (data_dir / "clean").exists()
    examination = DirectoryCheckup(clean=clean)
    if not clean:
        examination.note(
            data_dir, "the broker was not stopped cleanly; the next start checks the logs"
        )
    topics = data_dir / "topics"
    for directory in sorted(topics.iterdir()) if topics.is_dir() else ():
        _examine_topic(examination, directory)
    for name, check in _STATE_LOGS.items():
        if (data_dir / name).is_dir():
            check_log(examination, data_dir / name, clean=clean, check_batch=check)
    producer_ids = data_dir / "producer-ids"
    try:
        ProducerIds(producer_ids)
    except LogCorrupt as error:
        examination.damage(producer_ids, f"the broker cannot start: {error.reason}")
    return examination


def _examine_topic(examination: DirectoryCheckup, directory: Path) -> None:
    if (directory / DELETED_MARK).exists():
        examination.note(directory, "the topic is deleted; the next start removes the directory")
        return
    path = directory / DESCRIPTION
    try:
        description = read_checked(path, TopicDescription)
        log_config(LogConfig(fsync="always"), description.settings.items())
    except (OSError, ValueError, RequestError) as error:
        examination.damage(path, f"the topic cannot be opened: {error}")
        return
    if description.name != directory.name:
        examination.damage(path, f"it describes another topic, {description.name!r}")
    examination.topics += 1
    examination.partitions += description.partitions
    expected = {str(index) for index in range(description.partitions)}
    found = {each.name for each in directory.iterdir() if each.is_dir()}
    for name in sorted(expected - found, key=int):
        examination.damage(directory / name, "the log of this partition is missing")
    for name in sorted(found - expected):
        examination.note(directory / name, "belongs to no partition of the topic")
    for name in sorted(expected & found, key=int):
        check_log(examination, directory / name, clean=examination.clean)


def _check_offset(key: bytes, value: bytes | None) -> None:
    decoded = decode_offsets_key(key)
    if value is not None and isinstance(decoded, OffsetKey):
        decode_offset(value)
    elif value is not None and isinstance(decoded, ConsumerGroupKey):
        decode_consumer_group(value)
    elif value is not None:
        decode_group(value)


def _check_transaction(key: bytes, value: bytes | None) -> None:
    transactional_id = decode_transactional_id(key)
    if value is not None:
        decode_transaction(transactional_id, value)


def _state_check(check: Callable[[bytes, bytes | None], None]) -> Callable[[FoundBatch], str]:
    def check_batch(batch: FoundBatch) -> str:
        if batch.header.is_control:
            return ""
        try:
            for record in read_records(batch.data, batch.header):
                check(record.key or b"", record.value)
        except (BatchError, MalformedRecord) as error:
            return f"this version cannot read it: {error}"
        return ""

    return check_batch


_STATE_LOGS: Final = {
    "offsets": _state_check(_check_offset),
    "transactions": _state_check(_check_transaction),
}
"""Directories of the coordinators' logs, with a check of their records."""
