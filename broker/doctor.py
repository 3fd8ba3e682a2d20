"""Examines the data directory of a broker that does not run. Writes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from broker.datadir import read_meta, unused
from broker.errors import RequestError
from broker.files import read_checked
from broker.groups.offset_records import OffsetKey, decode_group, decode_offset
from broker.groups.offset_records import decode_key as decode_offset_key
from broker.log.checkup import Finding, check_log
from broker.log.config import LogConfig
from broker.log.errors import LogCorrupt
from broker.log.files import read_sealed
from broker.records import BatchError, read_records
from broker.state_records import MalformedRecord
from broker.topics.config import log_config
from broker.topics.store import DELETED_MARK, DESCRIPTION, TopicDescription
from broker.transactions.records import decode_key as decode_transaction_key
from broker.transactions.records import decode_transaction

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from broker.log.checkup import LogCheckup
    from broker.log.inspection import FoundBatch

__all__ = ["Examination", "examine"]


@dataclass(slots=True)
class Examination:
    """What is in a data directory, and what is wrong with it."""

    clean: bool
    findings: list[Finding] = field(default_factory=list)
    topics: int = 0
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    size_bytes: int = 0

    @property
    def is_damaged(self) -> bool:
        return any(finding.kind == "damage" for finding in self.findings)

    def damage(self, where: Path, what: str) -> None:
        self.findings.append(Finding("damage", where, what))

    def note(self, where: Path, what: str) -> None:
        self.findings.append(Finding("note", where, what))

    def add(self, checkup: LogCheckup) -> None:
        self.findings += checkup.findings
        self.segments += checkup.segments
        self.batches += checkup.batches
        self.size_bytes += checkup.size_bytes


def examine(data_dir: Path) -> Examination:
    """Read all that is in a data directory.

    Raises BrokerError when it is none, is of another format, or is used by a broker that runs, and
    OSError when a file cannot be read.
    """
    read_meta(data_dir)
    with unused(data_dir):
        return _examine(data_dir)


def _examine(data_dir: Path) -> Examination:
    clean = (data_dir / "clean").exists()
    examination = Examination(clean)
    if not clean:
        examination.note(
            data_dir, "the broker did not stop in an orderly way; the next start checks the logs"
        )
    topics = data_dir / "topics"
    for directory in sorted(topics.iterdir()) if topics.is_dir() else ():
        _examine_topic(examination, directory)
    for name, check in _STATE_LOGS.items():
        if (data_dir / name).is_dir():
            examination.add(check_log(data_dir / name, clean=clean, check_batch=check))
    _examine_producer_ids(examination, data_dir / "producer-ids")
    return examination


def _examine_topic(examination: Examination, directory: Path) -> None:
    if (directory / DELETED_MARK).exists():
        examination.note(
            directory, "the topic is deleted; the next start removes what is left of it"
        )
        return
    path = directory / DESCRIPTION
    try:
        description = read_checked(path, TopicDescription)
        log_config(LogConfig(fsync="always"), description.settings.items())
    except (OSError, ValueError, RequestError) as error:
        examination.damage(path, f"the topic cannot be opened: {error}")
        return
    if description.name != directory.name:
        examination.damage(path, f"it describes the topic {description.name!r}")
    examination.topics += 1
    examination.partitions += description.partitions
    expected = {str(index) for index in range(description.partitions)}
    found = {each.name for each in directory.iterdir() if each.is_dir()}
    for name in sorted(expected - found, key=int):
        examination.damage(directory / name, "the log of this partition is missing")
    for name in sorted(found - expected):
        examination.note(directory / name, "belongs to no partition of the topic")
    for name in sorted(expected & found, key=int):
        examination.add(check_log(directory / name, clean=examination.clean))


def _examine_producer_ids(examination: Examination, path: Path) -> None:
    try:
        payload = read_sealed(path)
    except LogCorrupt as error:
        examination.damage(path, f"the broker does not start: {error.reason}")
        return
    if payload is not None and not payload.isdigit():
        examination.damage(path, "the broker does not start: it does not hold a number")


def _check_offset(key: bytes, value: bytes | None) -> None:
    decoded = decode_offset_key(key)
    if value is not None and isinstance(decoded, OffsetKey):
        decode_offset(value)
    elif value is not None:
        decode_group(value)


def _check_transaction(key: bytes, value: bytes | None) -> None:
    transactional_id = decode_transaction_key(key)
    if value is not None:
        decode_transaction(transactional_id, value)


def _state_check(
    check: Callable[[bytes, bytes | None], None],
) -> Callable[[FoundBatch], str]:
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
"""Directories of the coordinators' logs."""
