"""A log under any order of appends, failed writes, reads, rolls, deletions, restarts, kills, power losses."""

import errno
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kmr.broker.log.disk_work import do_now
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import NewRecord, build_batch, split_batches
from kmr.broker.log.results import LogFailed, OffsetNotInLog
from tests.examples import examples

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150, retention_ms=-1)
TIMES = st.integers(min_value=0, max_value=9)


@dataclass(frozen=True)
class Batch:
    """The model of an appended batch; `data` as it is stored."""

    first: int
    count: int
    data: bytes
    timestamp: int
    producer: int
    sequence: int

    @property
    def next(self) -> int:
        return self.first + self.count


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.generation = 0
        self.batches: list[Batch] = []
        self.unflushed = 0  # how many of them have not been written
        self.start = 0
        self.synced: dict[str, int] = {}  # bytes of each segment that survive a power loss

    @initialize()
    def create(self) -> None:
        self.log = PartitionLog.open(self.root / "0", CONFIG, clean=True)

    def teardown(self) -> None:
        self.log.close()
        shutil.rmtree(self.root)

    @property
    def end(self) -> int:
        # Records deleted on request stay deleted, even if later records are lost.
        return max(self.start, self.batches[-1].next if self.batches else 0)

    def segments(self, directory: Path | None = None) -> list[Path]:
        return sorted((directory or self.log.directory).glob("*.log"))

    # -- writing

    @rule(
        count=st.integers(min_value=1, max_value=4),
        size=st.sampled_from([0, 10, 100, 800]),
        timestamp=TIMES,
        producer=st.sampled_from([-1, 1, 2]),
    )
    def append(self, count: int, size: int, timestamp: int, producer: int) -> None:
        sequence = -1
        if producer >= 0:
            sent = [batch for batch in self.batches if batch.producer == producer]
            sequence = sent[-1].sequence + sent[-1].count if sent else 0
        data = self.built(count, size, timestamp, producer, sequence)
        appended = self.log.append(data, split_batches(data), now_ms=0)
        assert not appended.duplicate
        assert (appended.first_offset, appended.last_offset) == (self.end, self.end + count - 1)
        rolled = self.segments()[-1].stem == f"{appended.first_offset:020}"
        self.batches.append(
            Batch(appended.first_offset, count, bytes(data), timestamp, producer, sequence)
        )
        self.unflushed = 1 if rolled else self.unflushed + 1

    def built(
        self, count: int, size: int, timestamp: int, producer: int, sequence: int
    ) -> bytearray:
        return build_batch(
            [NewRecord(None, bytes(size), (), timestamp)] * count,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
        )

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), producer=st.sampled_from([1, 2]))
    def send_again(self, data: st.DataObject, producer: int) -> None:
        sent = [batch for batch in self.batches if batch.producer == producer][-5:]
        if sent := [batch for batch in sent if batch.first >= self.start]:
            batch = data.draw(st.sampled_from(sent))
            again = bytearray(batch.data)
            appended = self.log.append(again, split_batches(again), now_ms=0)
            assert appended.duplicate
            assert appended.first_offset == batch.first

    @rule()
    def flush(self) -> None:
        self.log.flush_pending()
        self.unflushed = 0

    @precondition(lambda self: self.unflushed)
    @rule(torn=st.integers(min_value=0, max_value=300))
    def fail_to_write(self, torn: int) -> None:
        """Fill the disk in the middle of a write: what was not written is as if it had not been sent."""
        write = os.pwrite
        free = torn

        def fill(descriptor: int, buffers: Sequence[bytes], position: int) -> int:
            nonlocal free
            if not free:
                raise OSError(errno.ENOSPC, "no space")
            written = write(descriptor, b"".join(buffers)[:free], position)
            free -= written
            return written

        pending = sum(len(batch.data) for batch in self.batches[-self.unflushed :])
        with patch.object(os, "pwritev", fill):
            if torn < pending:
                with pytest.raises(LogFailed):
                    self.log.flush_pending()
                del self.batches[-self.unflushed :]
            else:
                self.log.flush_pending()
        self.unflushed = 0

    @rule()
    def fsync(self) -> None:
        self.flush()
        assert self.log.fsync() == self.end
        self.note_synced()

    def note_synced(self) -> None:
        self.synced = {path.name: path.stat().st_size for path in self.segments()}

    @rule()
    def roll(self) -> None:
        self.log.roll()
        self.unflushed = 0

    # -- deleting

    @rule(keep=st.integers(min_value=0, max_value=3000))
    def retain(self, keep: int) -> None:
        self.unflushed = 0
        self.log.update_config(replace(CONFIG, retention_bytes=keep))
        deleted = do_now(self.log.retention(0))
        self.log.update_config(CONFIG)
        if deleted:
            self.start = max(self.start, deleted[-1].next_offset)
            assert self.log.size_bytes >= keep
        assert self.log.size_bytes - self.segments()[0].stat().st_size < max(keep, 1)

    @rule(percent=st.integers(min_value=0, max_value=100))
    def truncate_start(self, percent: int) -> None:
        self.unflushed = 0
        self.start += (self.end - self.start) * percent // 100
        do_now(self.log.truncation(self.start))

    # -- reading

    @rule(percent=st.integers(min_value=0, max_value=100), size=st.integers(1, 2000))
    def read(self, percent: int, size: int) -> None:
        self.unflushed = 0
        offset = self.start + (self.end - self.start) * percent // 100
        buffer = memoryview(bytearray(size))
        span = self.log.read_into(offset, buffer)
        expected = [batch for batch in self.batches if batch.next > offset]
        if span.size:
            assert span.first_offset == expected[0].first
            got = [batch for batch in expected if batch.next <= span.next_offset]
            assert b"".join(batch.data for batch in got) == buffer[: span.size]
            assert got[-1].next == span.next_offset
        else:
            assert span.needed_bytes == (len(expected[0].data) if expected else 0)
            assert span.needed_bytes > size or not expected

    @rule(beyond=st.integers(min_value=1, max_value=5), below=st.booleans())
    def read_outside(self, beyond: int, *, below: bool) -> None:
        with pytest.raises(OffsetNotInLog):
            self.log.read(self.start - beyond if below else self.end + beyond, 100, min_one=True)
        self.unflushed = 0

    @rule(timestamp=TIMES)
    def look_up(self, timestamp: int) -> None:
        self.unflushed = 0
        found = [b for b in self.batches if b.next > self.start and b.timestamp >= timestamp]
        expected = (max(self.start, found[0].first), found[0].timestamp) if found else None
        assert do_now(self.log.search(timestamp)) == expected

    # -- stopping

    @rule(clean=st.booleans())
    def restart(self, *, clean: bool) -> None:
        self.log.close()
        self.unflushed = 0
        self.reopen(self.log.directory, clean=clean)
        assert self.log.recovery.scanned_bytes == 0

    @rule(data=st.data(), garbage=st.binary(max_size=80))
    def kill(self, data: st.DataObject, garbage: bytes) -> None:
        """Kill: written batches survive, and any part of the current write."""
        directory = self.copied()
        written = self.batches[: len(self.batches) - self.unflushed]
        pending = b"".join(batch.data for batch in self.batches[len(written) :])
        torn = data.draw(st.integers(min_value=0, max_value=len(pending)))
        with self.segments(directory)[-1].open("ab") as file:
            file.write(pending[:torn] + garbage)
        for batch in self.batches[len(written) :]:
            torn -= len(batch.data)
            if torn >= 0:
                written.append(batch)
        self.recover(directory, written)

    @rule(data=st.data(), garbage=st.binary(max_size=80), clean=st.booleans())
    def lose_power(self, data: st.DataObject, garbage: bytes, *, clean: bool) -> None:
        """Lose power: any part of the unsynced bytes is missing or garbage."""
        directory = self.copied()
        kept = int(self.segments(directory)[0].stem)
        intact = True
        for path in self.segments(directory):
            size, synced = path.stat().st_size, self.synced.get(path.name, 0)
            left = data.draw(st.integers(min_value=synced, max_value=size))
            content = path.read_bytes()[:left]
            if synced < size:
                content += garbage
            path.write_bytes(content)
            if intact:
                for batch in self.batches:
                    if batch.first == kept and batch.first >= int(path.stem):
                        left -= len(batch.data)
                        if left < 0:
                            break
                        kept = batch.next
                intact = content == (self.log.directory / path.name).read_bytes()
        for path in directory.glob("*[xt]"):  # indexes and snapshots
            if path.suffix in (".index", ".timeindex", ".snapshot") and data.draw(st.booleans()):
                path.write_bytes(path.read_bytes()[: data.draw(st.integers(0, 40))])
        self.recover(directory, [b for b in self.batches if b.next <= kept], clean=clean)

    def copied(self) -> Path:
        self.generation += 1
        return Path(shutil.copytree(self.log.directory, self.root / str(self.generation)))

    def recover(self, directory: Path, batches: list[Batch], *, clean: bool = False) -> None:
        durable = self.log.durable_offset
        self.log.close()
        self.batches, self.unflushed = batches, 0
        self.reopen(directory, clean=clean)
        assert self.log.next_offset >= durable
        assert self.log.recovery.lost_durable_records == 0
        assert self.log.recovery.damaged == ""

    def reopen(self, directory: Path, *, clean: bool) -> None:
        self.log = PartitionLog.open(directory, CONFIG, clean=clean)
        self.note_synced()
        self.everything_is_there()

    def everything_is_there(self) -> None:
        offset = self.start
        for batch in self.batches:
            if batch.next > self.start:
                result = self.log.read(offset, 1, min_one=True)
                assert result.data == batch.data
                offset = result.next_offset
        assert offset == self.end

    @invariant()
    def bounds_are_as_expected(self) -> None:
        if hasattr(self, "log"):
            assert self.log.log_start_offset == self.start
            assert self.log.next_offset == self.end
            assert self.log.recovery_point <= self.log.durable_offset <= self.end


def test_a_log_is_always_a_prefix_of_the_appended_batches() -> None:
    machine: Any = LogMachine.TestCase
    machine.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
    machine().runTest()
