"""Committed offsets: acknowledged commits survive a restart, the log stays small, and its format."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from kmr.broker.coordinators.groups.group_types import GroupSnapshot, MemberSnapshot
from kmr.broker.coordinators.offset_store import (
    CommittedOffset,
    GroupKey,
    OffsetKey,
    OffsetStore,
    StoredGroup,
    decode_group,
    decode_offset,
    decode_offsets_key,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from kmr.broker.coordinators.state_log import MalformedRecord, StateLog
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.producers import Marker, ProducerIdentity
from kmr.broker.log.records import NewRecord, build_batch, parse_header
from kmr.broker.log.results import LogFailed
from kmr.broker.topics.topic import TopicPartition
from tests.examples import examples

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
            StateLog(
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

    # The killed process neither flushes nor closes: only the files remain.
    copy = tmp_path / "after-the-kill"
    copy.mkdir()
    for file in stores.directory.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    restarted = OffsetStore(StateLog(copy, CONFIG, clean=False))

    assert restarted.committed("g") == {("t", 0): at(5)}
    restarted.close()


async def test_only_the_requested_partitions_are_fetched(stores: Stores) -> None:
    store = stores.start()
    await store.commit("g", {("t", 0): at(5), ("u", 1): at(6)})
    assert await store.fetch("g", [("u", 1), ("u", 2)]) == {("u", 1): at(6)}
    assert await store.fetch("g", None) == {("t", 0): at(5), ("u", 1): at(6)}
    assert await store.fetch("unknown", None) == {}


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


async def test_offsets_of_deleted_topics_stay_removed_after_a_restart(stores: Stores) -> None:
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


async def test_under_fsync_always_a_fetched_offset_is_on_disk(
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


async def test_a_failed_commit_is_not_visible(
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


async def test_a_log_that_is_too_large_is_rewritten_while_running(stores: Stores) -> None:
    store = stores.start(rewrite_bytes=10_000)
    await store.commit("rare", {("t", 0): at(1)})
    for offset in range(1_000):
        await store.commit("g", {("t", 0): at(offset)})
        if store.log.should_rewrite:
            await store.maintain()
    assert size(stores.directory) < 25_000
    assert stores.start().committed("g") == {("t", 0): at(999)}
    assert stores.start().committed("rare") == {("t", 0): at(1)}


async def test_a_log_that_is_too_large_is_rewritten_at_the_start(stores: Stores) -> None:
    store = stores.start()
    for offset in range(1_000):
        await store.commit("g", {("t", 0): at(offset)})
    assert size(stores.directory) > 50_000
    store = stores.start(rewrite_bytes=10_000)
    assert store.committed("g") == {("t", 0): at(999)}
    assert size(stores.directory) < 10_000


async def test_a_large_log_of_live_records_is_not_rewritten_repeatedly(
    stores: Stores,
) -> None:
    store = stores.start(rewrite_bytes=1_000)
    await store.commit("g", {("t", index): at(1) for index in range(200)})
    assert store.log.should_rewrite
    await store.maintain()
    assert not store.log.should_rewrite
    assert len(store.committed("g")) == 200


X, Y = ProducerIdentity(1, 0), ProducerIdentity(2, 0)
COMMIT = Marker(committed=True, coordinator_epoch=0)
ABORT = Marker(committed=False, coordinator_epoch=0)


@pytest.mark.parametrize("marker", [COMMIT, ABORT])
@pytest.mark.parametrize("restart", ["before", "after"])
async def test_offsets_of_a_transaction_are_committed_with_it(
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
async def test_the_later_record_of_two_commits_wins(
    stores: Stores, rewritten: bool, restarted: bool
) -> None:
    store = stores.start(rewrite_bytes=1 if rewritten else 1 << 20)
    await store.commit_in_transaction("g", X, {("t", 0): at(1), ("t", 1): at(1)})
    await store.commit("g", {("t", 0): at(2)})
    await store.commit_in_transaction("g", Y, {("t", 0): at(3)})
    if rewritten:
        assert store.log.should_rewrite
        await store.maintain()
    if restarted:
        store = stores.start()
    await store.end_transaction(X, COMMIT)
    assert store.committed("g") == {("t", 0): at(2), ("t", 1): at(1)}
    await store.end_transaction(Y, COMMIT)
    assert store.committed("g")["t", 0] == at(3)
    assert stores.start().committed("g") == {("t", 0): at(3), ("t", 1): at(1)}


async def test_the_later_record_of_two_pending_commits_wins_even_after_a_rewrite(
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


async def test_removed_offsets_are_not_committed_by_an_open_transaction(
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
        self.expected: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self.runner = asyncio.Runner()

    @rule(
        group=st.sampled_from("ab"),
        offsets=st.dictionaries(
            st.tuples(st.sampled_from("tu"), st.integers(0, 2)),
            st.builds(at, st.integers(0, 100), st.text("m", max_size=200)),
        ),
    )
    def commit(self, group: str, offsets: dict[TopicPartition, CommittedOffset]) -> None:
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


def test_the_store_equals_a_dict_in_any_order_of_operations(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    class Machine(StoreMachine):
        def __init__(self) -> None:
            super().__init__(tmp_path_factory.mktemp("offsets"))

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=examples(50), stateful_step_count=30, deadline=None)
    )


# -- the records --------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
seconds = st.integers(0, 2**31 - 1).map(lambda ms: ms / 1000)
members = st.builds(
    MemberSnapshot,
    member_id=names,
    instance_id=names | st.none(),
    client_id=names,
    client_host=names,
    session_timeout=seconds,
    rebalance_timeout=seconds,
    metadata=st.binary(max_size=100),
    assignment=st.binary(max_size=100),
)
groups = st.builds(
    StoredGroup,
    st.builds(
        GroupSnapshot,
        generation=int32,
        protocol_type=names,
        protocol_name=names | st.none(),
        leader_id=names | st.none(),
        members=st.lists(members, max_size=3).map(tuple),
    ),
    int64,
)


@given(
    st.builds(OffsetKey, names, names, int32),
    st.builds(CommittedOffset, int64, int32, names, int64),
)
def test_a_committed_offset_is_decoded_as_it_was_encoded(
    key: OffsetKey, committed: CommittedOffset
) -> None:
    assert decode_offsets_key(encode_offset_key(key)) == key
    assert decode_offset(encode_offset(committed)) == committed


@given(names, groups)
def test_a_generation_is_decoded_as_it_was_encoded(group_id: str, group: StoredGroup) -> None:
    assert decode_offsets_key(encode_group_key(group_id)) == GroupKey(group_id)
    assert decode_group(encode_group(group)) == group


def test_records_have_the_bytes_of_kafka() -> None:
    assert encode_offset_key(OffsetKey("g", "t", 7)) == bytes.fromhex(
        "0001 0001 67 0001 74 00000007"
    )
    value = encode_offset(CommittedOffset(10, -1, "m", 1_000))
    assert value == bytes.fromhex("0003 000000000000000a ffffffff 0001 6d 00000000000003e8")
    assert encode_group_key("g") == bytes.fromhex("0002 0001 67")
    member = MemberSnapshot("m", None, "c", "h", 10, 60, b"S", b"A")
    group = StoredGroup(GroupSnapshot(3, "consumer", "range", "m", (member,)), 1_000)
    assert encode_group(group) == (
        bytes.fromhex("0003 0008") + b"consumer" + bytes.fromhex("00000003 0005") + b"range"
        + bytes.fromhex("0001 6d 00000000000003e8 00000001")
        + bytes.fromhex("0001 6d ffff 0001 63 0001 68 0000ea60 00002710 00000001 53 00000001 41")
    )  # fmt: skip


@given(st.binary(max_size=60))
def test_any_other_bytes_raise_malformed_record(data: bytes) -> None:
    for decode in (decode_offsets_key, decode_offset, decode_group):
        try:
            decode(data)
        except MalformedRecord:
            continue


@given(groups, st.data())
def test_a_record_that_is_cut_off_is_refused(group: StoredGroup, data: st.DataObject) -> None:
    whole = encode_group(group)
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(MalformedRecord):
        decode_group(part)


def test_a_name_that_is_too_long_cannot_be_stored() -> None:
    with pytest.raises(ValueError, match="32768 bytes"):
        encode_group_key("x" * 32768)
