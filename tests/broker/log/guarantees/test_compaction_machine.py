"""Compaction under any order of appends, rolls, deletions, restarts, kills and power losses."""

import shutil
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kmr.broker.log.compaction import Compaction, CompactionPlan, plan_compaction
from kmr.broker.log.disk_work import do_now
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import (
    NewRecord,
    build_batch,
    parse_header,
    read_records,
    split_batches,
)
from kmr.broker.log.swap import commit_swap
from tests.examples import examples

CONFIG = LogConfig(
    cleanup_policy="compact",
    segment_bytes=400,
    index_interval_bytes=100,
    retention_ms=-1,
    min_cleanable_dirty_ratio=0,
    delete_retention_ms=10,
)
KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
Pair = tuple[bytes, bytes | None]


class CompactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.numbers = count(1)
        self.appended: dict[int, Pair] = {}
        self.start = 0
        self.now_ms = 0
        self.synced: dict[str, int] = {}  # bytes of each segment that survive a power loss

    @initialize()
    def create(self) -> None:
        self.log = PartitionLog.open(self.root / "0", CONFIG, clean=True)

    def teardown(self) -> None:
        self.log.close()
        shutil.rmtree(self.root)

    @property
    def end(self) -> int:
        return max(self.start, max(self.appended, default=-1) + 1)

    # -- operations of a broker

    @rule(
        keys=st.lists(st.tuples(KEYS, st.booleans()), min_size=1, max_size=5),
        codec=st.sampled_from(["none", "lz4"]),
    )
    def append(self, keys: list[tuple[bytes, bool]], codec: str) -> None:
        pairs = [(key, b"%d" % next(self.numbers) if alive else None) for key, alive in keys]
        batch = build_batch([NewRecord(*pair) for pair in pairs], codec=codec)  # type: ignore[arg-type]
        first = self.log.append(batch, split_batches(batch), now_ms=0).first_offset
        assert first == self.end
        self.appended.update(enumerate(pairs, first))
        self.log.flush_pending()

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(passed=st.integers(min_value=1, max_value=20))
    def time_passes(self, passed: int) -> None:
        self.now_ms += passed

    @rule(share=st.floats(min_value=0, max_value=1))
    def delete_records(self, share: float) -> None:
        self.start += int(share * (self.end - self.start))
        do_now(self.log.truncation(self.start))
        self.note_synced()

    @rule()
    def fsync(self) -> None:
        self.log.fsync()
        self.note_synced()

    @rule(max_keys=st.sampled_from([1, 2, 100]))
    def compact(self, max_keys: int) -> None:
        compaction = self.begun(max_keys)
        if compaction is None:
            return
        plan = compaction.plan
        for group in plan.groups:
            rewritten = compaction.rewrite(group)
            assert rewritten is None or do_now(self.log.replacement(rewritten))
        state = plan.state.after_pass(compaction.clean_to, compaction.tombstones, self.now_ms)
        state.save(plan.directory)
        self.note_synced()

    # -- what happens to it

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.log.close()
        self.open(self.log.directory, clean=clean)
        self.note_synced()

    @rule()
    def kill(self) -> None:
        self.open(self.copied(), clean=False)
        self.note_synced()

    @rule(groups=st.integers(min_value=0, max_value=3), step=st.sampled_from(["tmp", "swap"]))
    def kill_in_the_middle_of_a_pass(self, groups: int, step: str) -> None:
        compaction = self.begun(100)
        if compaction is None:
            return
        for number, group in enumerate(compaction.plan.groups):
            rewritten = compaction.rewrite(group)
            if rewritten is None:
                continue
            if number < groups:
                assert do_now(self.log.replacement(rewritten))
                continue
            if step == "swap":
                base, end = group[0].base_offset, group[-1].end_offset
                commit_swap(self.log.directory, base, end)
            break
        self.kill()

    @rule()
    def lose_power(self) -> None:
        directory = self.copied()
        for path in directory.glob("*.log"):
            if path.name not in self.synced:
                path.unlink()
            elif path.stat().st_size > self.synced[path.name]:
                with path.open("rb+") as file:
                    file.truncate(self.synced[path.name])
        self.open(directory, clean=False)
        assert not self.log.recovery.lost_durable_records
        self.appended = {
            at: each for at, each in self.appended.items() if at < self.log.next_offset
        }
        self.note_synced()

    # -- what must hold

    @invariant()
    def consumers_see_a_part_of_what_was_appended(self) -> None:
        assert (self.log.log_start_offset, self.log.next_offset) == (self.start, self.end)
        stored = self.read_from(self.start)
        assert list(stored) == sorted(stored)
        for offset, pair in stored.items():
            assert self.appended[offset] == pair
        for offset in range(self.start, self.end):
            rest = {at: pair for at, pair in stored.items() if at >= offset}
            assert self.read_from(offset) == rest

    @invariant()
    def the_latest_value_of_every_key_is_there(self) -> None:
        stored = self.read_from(self.start)
        latest = {key: (offset, value) for offset, (key, value) in sorted(self.appended.items())}
        for key, (offset, value) in latest.items():
            if offset < self.start:
                continue
            if value is not None:
                assert stored.get(offset) == (key, value)
            elif offset not in stored:
                assert key not in {each for each, _ in stored.values()}, "it is alive again"

    # -- inside

    def begun(self, max_keys: int) -> Compaction | None:
        plan: CompactionPlan | None = plan_compaction(self.log, self.now_ms)
        if plan is None:
            return None
        self.log.checkpoint()
        self.note_synced()
        compaction = Compaction(plan, max_keys=max_keys)
        compaction.read_keys()
        return compaction

    def note_synced(self) -> None:
        segments = self.log.directory.glob("*.log")
        self.synced = {path.name: path.stat().st_size for path in segments}

    def copied(self) -> Path:
        directory = self.root / str(next(self.numbers))
        shutil.copytree(self.log.directory, directory)
        self.log.close()
        return directory

    def open(self, directory: Path, *, clean: bool) -> None:
        self.log = PartitionLog.open(directory, CONFIG, clean=clean)

    def read_from(self, offset: int) -> dict[int, Pair]:
        found: dict[int, Pair] = {}
        at = offset
        while at < self.log.next_offset:
            result = self.log.read(at, 1, min_one=True)
            for record in read_records(result.data, parse_header(result.data)):
                if record.offset >= offset:
                    found[record.offset] = (record.key or b"", record.value)
            at = result.next_offset
        return found


def test_the_latest_value_of_every_key_is_always_there() -> None:
    machine: Any = CompactionMachine.TestCase
    machine.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
    machine().runTest()
