"""Snapshots of a partition's producer states, so that opening a log need not read all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.log.errors import LogCorrupt
from broker.log.files import read_sealed, write_sealed
from broker.producers.markers import read_marker
from broker.producers.states import ProducerStates
from broker.records import CorruptBatch, parse_header

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from broker.log.segment import Segment

__all__ = ["restore_producers", "save_producers"]

_SUFFIX: Final = ".snapshot"
_KEPT: Final = 2  # one more than needed, should the newest be damaged or beyond a cut


def save_producers(producers: ProducerStates, directory: Path, next_offset: int) -> None:
    """Saves what the batches below `next_offset` tell of their producers; drops old snapshots."""
    path = directory / f"{next_offset:020d}{_SUFFIX}"
    write_sealed(path, producers.dump(), durable=False)
    for old in sorted(directory.glob(f"*{_SUFFIX}"))[:-_KEPT]:
        old.unlink()


def restore_producers(
    directory: Path, segments: Sequence[Segment], next_offset: int, *, now_ms: int
) -> ProducerStates:
    """What all batches below `next_offset` tell of their producers.

    From the newest usable snapshot and the headers of the batches after it. Damaged batches are
    passed over: reading them tells. Snapshots beyond `next_offset` are of batches that were cut off,
    and are deleted. All producers of batches after the snapshot count as seen at `now_ms`.
    """
    producers = ProducerStates()
    offset = segments[0].base_offset
    for path in sorted(directory.glob(f"*{_SUFFIX}"), reverse=True):
        if not path.stem.isdecimal() or int(path.stem) > next_offset:
            path.unlink()
        elif int(path.stem) >= offset and _load(producers, path):
            offset = int(path.stem)
            break
    for number, segment in enumerate(segments):
        last = number + 1 == len(segments)
        end = next_offset if last else segments[number + 1].base_offset
        if end > offset:
            _replay(producers, segment, offset, now_ms)
    return producers


def _load(producers: ProducerStates, path: Path) -> bool:
    try:
        payload = read_sealed(path)
        if payload is None:
            return False
        producers.load(payload)
    except (LogCorrupt, ValueError):
        return False
    return True


def _replay(producers: ProducerStates, segment: Segment, offset: int, now_ms: int) -> None:
    base_offset, position = segment.index.position_before(offset)
    try:
        for header in segment.batches(position, base_offset, verify=True):
            if header.base_offset < offset or header.producer_id < 0:
                continue
            if header.is_control:
                batch = segment.batch_bytes(header)
                marker = read_marker(batch, parse_header(batch))
                producers.end_transaction(header, marker, offset=header.base_offset, now_ms=now_ms)
            else:
                producers.update(
                    header,
                    first_offset=header.base_offset,
                    timestamp=header.max_timestamp,
                    now_ms=now_ms,
                )
    except (LogCorrupt, CorruptBatch):
        return
