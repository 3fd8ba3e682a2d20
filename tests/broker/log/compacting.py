"""Helpers of the compaction tests: write a log, compact it by hand, read it."""

from collections.abc import Callable
from pathlib import Path

from kmr.broker.log.compaction import Compaction, plan_compaction
from kmr.broker.log.disk_work import do_now
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.producers import Marker, ProducerIdentity, build_marker
from kmr.broker.log.records import (
    Codec,
    NewRecord,
    StoredRecord,
    build_batch,
    parse_header,
    read_records,
    split_batches,
)

Open = Callable[..., PartitionLog]
Pair = tuple[str, str | None]
NOW = 1_700_000_000_000
CONFIG = LogConfig(
    cleanup_policy="compact", retention_ms=-1, min_cleanable_dirty_ratio=0, delete_retention_ms=1000
)


def put(
    log: PartitionLog,
    *pairs: Pair,
    codec: Codec = "none",
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    timestamp: int = NOW,
) -> int:
    """Appends one batch; returns its first offset."""
    batch = build_batch(
        [
            NewRecord(key.encode(), None if value is None else value.encode(), (), timestamp)
            for key, value in pairs
        ],
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=transactional,
    )
    appended = log.append(batch, split_batches(batch), now_ms=NOW)
    log.flush_pending()
    return appended.first_offset


def end_transaction(log: PartitionLog, producer_id: int, *, commit: bool) -> None:
    marker = build_marker(Marker(commit, 0), ProducerIdentity(producer_id, 0), timestamp_ms=NOW)
    log.append(marker, [parse_header(marker)], now_ms=NOW)
    log.flush_pending()


def compact(log: PartitionLog, now_ms: int = NOW, *, max_keys: int = 1000) -> bool:
    """One pass; whether it was due."""
    plan = plan_compaction(log, now_ms)
    if plan is None:
        return False
    log.checkpoint()
    compaction = Compaction(plan, max_keys=max_keys)
    compaction.read_keys()
    for group in plan.groups:
        rewritten = compaction.rewrite(group)
        assert rewritten is None or do_now(log.replacement(rewritten))
    plan.state.after_pass(compaction.clean_to, compaction.tombstones, now_ms).save(log.directory)
    return True


def stored(log: PartitionLog) -> list[StoredRecord]:
    """All records, markers too, as a consumer reads them from the start."""
    records: list[StoredRecord] = []
    offset = log.log_start_offset
    while offset < log.next_offset:
        result = log.read(offset, 1, min_one=True)
        header = parse_header(result.data)
        assert result.first_offset <= offset or header.record_count, "passed over for nothing"
        assert header.record_count or result.next_offset == log.next_offset, "nothing to read"
        assert result.next_offset > offset
        found = read_records(result.data, header)
        assert len(found) == header.record_count
        records += [record for record in found if record.offset >= log.log_start_offset]
        offset = result.next_offset
    return records


def pairs(log: PartitionLog) -> dict[int, Pair]:
    """Offset to key and value."""
    return {
        record.offset: (
            (record.key or b"").decode(),
            None if record.value is None else record.value.decode(),
        )
        for record in stored(log)
    }


def log_files(log: PartitionLog) -> list[Path]:
    return sorted(log.directory.glob("*.log"))
