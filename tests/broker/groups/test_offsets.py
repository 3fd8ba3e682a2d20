"""Committed offsets: what is acknowledged is there after a restart, and the log stays small."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from broker.groups.offsets import CommittedOffset, OffsetStore, Partition
from broker.log.config import LogConfig
from broker.log.errors import LogFailed
from broker.log.partition import PartitionLog
from broker.membership.types import GroupSnapshot, MemberSnapshot
from broker.producers.identity import ProducerIdentity
from broker.producers.markers import Marker
from broker.records import NewRecord, build_batch, parse_header
from broker.state_log import StateLog

CONFIG = LogConfig(fsync="os")


def at(offset: int, metadata: str = "") -> CommittedOffset:
    return CommittedOffset(offset, -1, metadata, 1_000)


class Stores:
    """Opens the same directory again and again, as a broker that restarts does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open: OffsetStore | None = None

    def start(self, config: LogConfig = CONFIG, rewrite_bytes: int = 8 << 20) -> OffsetStore:
        self.stop()
        self._open = OffsetStore(
            StateLog.open(
                self.directory, config, clean=False, rewrite_bytes=rewrite_bytes, now=lambda: 1.0
            )
        )
        return self._open

    def stop(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "offsets")
    yield stores
    stores.stop()


async def test_the_newest_commit_of_each_partition_survives_a_restart(stores: Stores) -> None:
    store = stores.start()
    await store.commit("g", {("t", 0): at(5), ("t", 1): at(6, "note")})
    await store.commit("g", {("t", 0): at(7)})
    await store.commit("other", {("t", 0): at(1)})

    store = stores.start()

    assert store.committed("g") == {("t", 0): at(7), ("t", 1): at(6, "note")}
    assert store.committed("other") == {("t", 0): at(1)}
    assert store.group_ids() == {"g", "other"}


async def test_a_commit_survives_the_kill_of_the_process(stores: Stores, tmp_path: Path) -> None:
    store = stores.start()
    await store.commit("g", {("t", 0): at(5)})

    # The killed process neither flushes nor closes: only what is in the files counts.
    copy = tmp_path / "after-the-kill"
    copy.mkdir()
    for file in stores.directory.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    restarted = OffsetStore(StateLog.open(copy, CONFIG, clean=False))

    assert restarted.committed("g") == {("t", 0): at(5)}
    restarted.close()


async def test_only_what_was_asked_for_is_fetched(stores: Stores) -> None:
    store = stores.start()
    await store.commit("g", {("t", 0): at(5), ("u", 1): at(6)})
    assert await store.fetch("g", [("u", 1), ("u", 2)]) == {("u", 1): at(6)}
    assert await store.fetch("g", None) == {("t", 0): at(5), ("u", 1): at(6)}
    assert await store.fetch("nobody", None) == {}


async def test_a_generation_survives_a_restart(stores: Stores) -> None:
    member = MemberSnapshot("m", "i", "client", "host", 10, 60, b"topics", b"partitions")
    snapshot = GroupSnapshot(3, "consumer", "range", "m", (member,))
    stores.start().store_group("g", snapshot)

    stored = stores.start().stored_group("g")

    assert stored == (snapshot, 1_000)


async def test_a_removed_group_stays_removed(stores: Stores) -> None:
    store = stores.start()
    store.store_group("g", GroupSnapshot(1, "consumer"))
    await store.commit("g", {("t", 0): at(5)})
    store.remove_group("g")
    assert store.group_ids() == set()
    assert stores.start().group_ids() == set()


async def test_offsets_of_deleted_topics_are_forgotten_for_good(stores: Stores) -> None:
    store = stores.start()
    await store.commit("g", {("gone", 0): at(5), ("kept", 0): at(6)})
    await store.commit("h", {("gone", 1): at(7)})
    store.remove_topics({"gone"})
    for each in (store, stores.start()):
        assert each.committed("g") == {("kept", 0): at(6)}
        assert each.group_ids() == {"g"}


async def test_under_fsync_always_a_commit_is_on_disk_when_it_is_acknowledged(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = PartitionLog.fsync

    def counting(log: PartitionLog) -> int:
        synced.append(fsync(log))
        return synced[-1]

    monkeypatch.setattr(PartitionLog, "fsync", counting)
    store = stores.start(LogConfig(fsync="always"))
    await store.commit("g", {("t", 0): at(5)})
    assert synced == [1]
    await store.fetch("g", None)
    assert synced == [1]  # it was on disk already


async def test_under_fsync_always_no_offset_is_shown_that_a_power_loss_could_take_back(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(log: PartitionLog) -> int:
        raise LogFailed("the disk is gone")

    store = stores.start(LogConfig(fsync="always"))
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "fsync", failing)
        with pytest.raises(LogFailed):
            await store.commit("g", {("t", 0): at(5)})
        with pytest.raises(LogFailed):
            await store.fetch("g", None)


async def test_a_commit_that_could_not_be_written_is_not_shown(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(log: PartitionLog) -> None:
        raise LogFailed("the disk is full")

    store = stores.start()
    await store.commit("g", {("t", 0): at(5)})
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "flush_pending", failing)
        with pytest.raises(LogFailed):
            await store.commit("g", {("t", 0): at(6)})
    assert await store.fetch("g", None) == {("t", 0): at(5)}


async def test_a_log_of_mostly_history_is_rewritten_while_running(stores: Stores) -> None:
    store = stores.start(rewrite_bytes=10_000)
    await store.commit("rare", {("t", 0): at(1)})
    for offset in range(1_000):
        await store.commit("g", {("t", 0): at(offset)})
        if store.should_rewrite:
            await store.maintain()
    assert size(stores.directory) < 25_000
    assert stores.start().committed("g") == {("t", 0): at(999)}
    assert stores.start().committed("rare") == {("t", 0): at(1)}


async def test_a_log_of_mostly_history_is_rewritten_at_the_start(stores: Stores) -> None:
    store = stores.start()
    for offset in range(1_000):
        await store.commit("g", {("t", 0): at(offset)})
    assert size(stores.directory) > 50_000
    store = stores.start(rewrite_bytes=10_000)
    assert store.committed("g") == {("t", 0): at(999)}
    assert size(stores.directory) < 10_000


async def test_a_large_log_that_is_all_alive_is_not_rewritten_again_and_again(
    stores: Stores,
) -> None:
    store = stores.start(rewrite_bytes=1_000)
    await store.commit("g", {("t", index): at(1) for index in range(200)})
    assert store.should_rewrite
    await store.maintain()
    assert not store.should_rewrite
    assert len(store.committed("g")) == 200


X, Y = ProducerIdentity(1, 0), ProducerIdentity(2, 0)
COMMIT = Marker(committed=True, coordinator_epoch=0)
ABORT = Marker(committed=False, coordinator_epoch=0)


@pytest.mark.parametrize("marker", [COMMIT, ABORT])
@pytest.mark.parametrize("restart", ["before", "after"])
async def test_offsets_of_a_transaction_count_from_its_commit_on(
    stores: Stores, marker: Marker, restart: str
) -> None:
    store = stores.start()
    await store.commit("g", {("t", 0): at(1)})
    await store.commit_in_transaction("g", X, {("t", 0): at(5), ("t", 1): at(6)})
    await store.commit_in_transaction("other", X, {("t", 0): at(7)})
    if restart == "before":
        store = stores.start()
    assert store.committed("g") == {("t", 0): at(1)}
    assert store.pending("g") == {("t", 0), ("t", 1)}
    assert store.group_ids() == {"g", "other"}
    assert store.pending_producers == [X]
    await store.end_transaction(Y, marker)
    await store.end_transaction(X, marker)
    if restart == "after":
        store = stores.start()
    assert store.pending("g") == set()
    if marker.committed:
        assert store.committed("g") == {("t", 0): at(5), ("t", 1): at(6)}
        assert store.committed("other") == {("t", 0): at(7)}
    else:
        assert store.committed("g") == {("t", 0): at(1)}
        assert store.committed("other") == {}


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
async def test_of_two_commits_the_one_that_was_stored_later_holds(
    stores: Stores, rewritten: bool, restarted: bool
) -> None:
    store = stores.start(rewrite_bytes=1 if rewritten else 1 << 20)
    await store.commit_in_transaction("g", X, {("t", 0): at(1), ("t", 1): at(1)})
    await store.commit("g", {("t", 0): at(2)})
    await store.commit_in_transaction("g", Y, {("t", 0): at(3)})
    if rewritten:
        assert store.should_rewrite
        await store.maintain()
    if restarted:
        store = stores.start()
    await store.end_transaction(X, COMMIT)
    assert store.committed("g") == {("t", 0): at(2), ("t", 1): at(1)}
    await store.end_transaction(Y, COMMIT)
    assert store.committed("g")["t", 0] == at(3)
    assert stores.start().committed("g") == {("t", 0): at(3), ("t", 1): at(1)}


async def test_of_two_pending_commits_the_later_one_holds_also_after_a_rewrite(
    stores: Stores,
) -> None:
    store = stores.start(rewrite_bytes=0)
    await store.commit_in_transaction("g", X, {("t", 0): at(1)})
    await store.commit_in_transaction("g", Y, {("t", 0): at(2)})
    await store.commit_in_transaction("g", X, {("t", 0): at(3)})
    await store.maintain()
    store = stores.start()
    for producer in (Y, X):
        await store.end_transaction(producer, COMMIT)
    assert store.committed("g") == {("t", 0): at(3)}


async def test_what_is_removed_is_not_committed_by_a_transaction_that_was_open(
    stores: Stores,
) -> None:
    store = stores.start()
    await store.commit_in_transaction("g", X, {("t", 0): at(1), ("u", 0): at(1)})
    await store.commit_in_transaction("gone", Y, {("u", 0): at(1)})
    store.remove_topics(["t"])
    store.remove_group("gone")
    assert store.pending("g") == {("u", 0)}
    for _ in range(2):
        assert store.pending_producers == [X]
        store = stores.start()
    await store.end_transaction(X, COMMIT)
    await store.end_transaction(Y, COMMIT)
    assert store.committed("g") == {("u", 0): at(1)}
    assert store.group_ids() == {"g"}


async def test_records_of_a_newer_version_are_skipped(stores: Stores) -> None:
    store = stores.start()
    await store.commit("g", {("t", 0): at(5)})
    stores.stop()
    log = PartitionLog.open(stores.directory, CONFIG, clean=True)
    batch = build_batch([NewRecord(b"\x00\x63future", b"?")])
    log.append(batch, [parse_header(batch)], now_ms=0)
    log.close()
    assert stores.start().committed("g") == {("t", 0): at(5)}


def size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.log"))


class StoreMachine(RuleBasedStateMachine):
    """Any order of commits, removals, rewrites and restarts, against a dict."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.stores = Stores(directory)
        self.store = self.stores.start(rewrite_bytes=2_000)
        self.expected: dict[str, dict[Partition, CommittedOffset]] = {}
        self.runner = asyncio.Runner()

    @rule(
        group=st.sampled_from("ab"),
        offsets=st.dictionaries(
            st.tuples(st.sampled_from("tu"), st.integers(0, 2)),
            st.builds(at, st.integers(0, 100), st.text("m", max_size=200)),
        ),
    )
    def commit(self, group: str, offsets: dict[Partition, CommittedOffset]) -> None:
        self.runner.run(self.store.commit(group, offsets))
        self.expected.setdefault(group, {}).update(offsets)

    @rule(group=st.sampled_from("ab"))
    def remove_group(self, group: str) -> None:
        self.store.remove_group(group)
        self.expected.pop(group, None)

    @rule(topic=st.sampled_from("tu"))
    def remove_topic(self, topic: str) -> None:
        self.store.remove_topics({topic})
        for offsets in self.expected.values():
            for partition in [each for each in offsets if each[0] == topic]:
                del offsets[partition]

    @rule()
    def maintain(self) -> None:
        self.runner.run(self.store.maintain())

    @rule()
    def restart(self) -> None:
        self.store = self.stores.start(rewrite_bytes=2_000)

    def check(self) -> None:
        for group in "ab":
            assert self.store.committed(group) == self.expected.get(group, {})

    def teardown(self) -> None:
        self.check()
        self.restart()
        self.check()
        self.stores.stop()
        self.runner.close()


def test_the_store_remembers_what_a_dict_would(tmp_path_factory: pytest.TempPathFactory) -> None:
    class Machine(StoreMachine):
        def __init__(self) -> None:
            super().__init__(tmp_path_factory.mktemp("offsets"))

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=50, stateful_step_count=30, deadline=None)
    )
