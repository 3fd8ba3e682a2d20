"""Helpers for tests of the log."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import Codec, NewRecord, build_batch, split_batches
from kmr.broker.log.results import Appended

NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="session")
def append() -> Callable[..., Appended]:
    """Appends one batch; `producer` is its id, epoch and sequence."""

    def append(
        log: PartitionLog,
        values: Sequence[bytes],
        *,
        timestamps: Sequence[int] = (),
        codec: Codec = "none",
        producer: tuple[int, int, int] = (-1, -1, -1),
        now_ms: int = NOW_MS,
        flush: bool = True,
    ) -> Appended:
        times = timestamps or [now_ms] * len(values)
        batch = build_batch(
            [NewRecord(None, value, (), t) for value, t in zip(values, times, strict=True)],
            codec=codec,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
        )
        appended = log.append(batch, split_batches(batch), now_ms=now_ms)
        if flush:
            log.flush_pending()
        return appended

    return append


@pytest.fixture(scope="session")
def read_all() -> Callable[[PartitionLog], list[bytes]]:
    """The raw batches from the log start to the end, one read each."""

    def read_all(log: PartitionLog) -> list[bytes]:
        batches, offset = [], log.log_start_offset
        while offset < log.next_offset:
            result = log.read(offset, 1, min_one=True)
            assert result.first_offset <= offset < result.next_offset
            batches.append(bytes(result.data))
            offset = result.next_offset
        return batches

    return read_all


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Callable[..., PartitionLog]]:
    """Opens the log in `tmp_path/t-0`, by default as after a clean stop; closes it at the end."""
    logs: list[PartitionLog] = []

    def open_log(config: LogConfig | None = None, *, clean: bool = True) -> PartitionLog:
        logs.append(PartitionLog.open(tmp_path / "t-0", config or LogConfig(), clean=clean))
        return logs[-1]

    yield open_log
    for log in logs:
        if log.directory.exists():
            log.close()
