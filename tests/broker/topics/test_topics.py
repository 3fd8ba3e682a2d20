import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker import BrokerError, BrokerSettings
from kmr.broker.errors import RequestError
from kmr.broker.log.partition import PartitionLog
from kmr.broker.topics.topic import Watch
from kmr.broker.topics.topics import DESCRIPTION, Topics

Open = Callable[..., Awaitable[Topics]]


@pytest.fixture
async def open_topics(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the topics in `tmp_path`; closes them at the end."""
    opened: list[Topics] = []

    async def open_topics(*, clean: bool = True, **settings: Any) -> Topics:
        topics = Topics(tmp_path, BrokerSettings(data_dir=tmp_path, **settings))
        await topics.open(clean=clean)
        opened.append(topics)
        return topics

    yield open_topics
    for topics in opened:
        await topics.close()


async def test_a_created_topic_is_found_by_name_and_by_id(open_topics: Open) -> None:
    topics = await open_topics()
    topic = await topics.create("flights", 3)
    assert topics.get("flights") is topics.by_id(topic.topic_id) is topic
    assert [partition.index for partition in topic.partitions] == [0, 1, 2]
    assert topics.partition("flights", 2) is topic.partitions[2]
    assert topics.partition("flights", 3) is None
    assert topics.partition("flights", -1) is None
    assert topics.partition("trains", 0) is None
    assert topics.by_id(uuid4()) is None


async def test_topics_are_there_again_after_a_restart(open_topics: Open) -> None:
    topics = await open_topics()
    topic = await topics.create("flights", 2, {"retention.ms": "1000"})
    await topics.create("trains")
    await topics.close()
    again = await open_topics()
    assert sorted(each.name for each in again) == ["flights", "trains"]
    found = again.get("flights")
    assert found is not None
    assert (found.topic_id, len(found.partitions)) == (topic.topic_id, 2)
    assert found.settings == {"retention.ms": "1000"}
    assert found.config.retention_ms == 1000


async def test_a_topic_without_a_number_of_partitions_gets_the_default(open_topics: Open) -> None:
    topics = await open_topics(default_partitions=5)
    assert len((await topics.create("flights")).partitions) == 5


@pytest.mark.parametrize(
    ("partitions", "settings", "code", "message"),
    [
        (0, {}, ErrorCode.invalid_partitions, "at least 1"),
        (2**31 - 1, {}, ErrorCode.invalid_partitions, "max_partitions"),
        (1, {"retention": "1"}, ErrorCode.invalid_config, "Unknown topic config name: retention"),
        (1, {"retention.ms": "-2"}, ErrorCode.invalid_config, "retention.ms"),
        (1, {"retention.ms": "long"}, ErrorCode.invalid_config, "Not a number"),
        (1, {"cleanup.policy": "shred"}, ErrorCode.invalid_config, "cleanup.policy"),
        (1, {"flush.ms": "10"}, ErrorCode.invalid_config, "flush.ms = 10: needs a broker"),
    ],
)
async def test_a_topic_that_cannot_be_is_refused_with_a_reason(
    open_topics: Open, partitions: int, settings: dict[str, str], code: ErrorCode, message: str
) -> None:
    topics = await open_topics()
    with pytest.raises(RequestError, match=message) as refusal:
        await topics.create("flights", partitions, settings)
    assert refusal.value.code is code
    assert topics.get("flights") is None


async def test_the_limit_of_partitions_counts_all_topics(open_topics: Open) -> None:
    topics = await open_topics(max_partitions=3)
    await topics.create("flights", 2)
    with pytest.raises(RequestError, match="2 partitions in addition to 2 are more than"):
        await topics.create("trains", 2)
    await topics.create("trains", 1)


async def test_a_topic_is_created_once(open_topics: Open) -> None:
    topics = await open_topics()
    topic = await topics.create("flights")
    with pytest.raises(RequestError) as refusal:
        await topics.create("flights")
    assert refusal.value.code is ErrorCode.topic_already_exists
    assert await topics.create_if_missing("flights") is topic


async def test_a_deleted_topic_is_gone_with_its_files(open_topics: Open, tmp_path: Path) -> None:
    topics = await open_topics()
    old = await topics.create("flights", 2)
    await topics.delete("flights")
    assert topics.get("flights") is topics.by_id(old.topic_id) is None
    assert list((tmp_path / "topics").iterdir()) == []
    new = await topics.create("flights")
    assert new.topic_id != old.topic_id


async def test_missing_and_internal_topics_cannot_be_deleted(open_topics: Open) -> None:
    topics = await open_topics()
    with pytest.raises(RequestError) as refusal:
        await topics.delete("flights")
    assert refusal.value.code is ErrorCode.unknown_topic_or_partition


async def test_the_deletion_of_a_topic_ends_the_waiting_for_its_records(open_topics: Open) -> None:
    topics = await open_topics()
    topic = await topics.create("flights")
    due: list[bool] = []
    with Watch(topic.partitions, 1, lambda: due.append(True)):
        await topics.delete("flights")
    assert due == [True]
    assert topic.partitions[0].closed


@pytest.mark.parametrize("change", ["create", "delete"])
async def test_a_change_is_completed_after_its_request_is_cancelled(
    open_topics: Open, tmp_path: Path, change: str
) -> None:
    topics = await open_topics()
    if change == "delete":
        await topics.create("t")
    task = asyncio.create_task(getattr(topics, change)("t"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await topics.close()
    again = await open_topics()
    assert [each.name for each in again] == (["t"] if change == "create" else [])


async def test_a_name_that_differs_in_dots_and_underscores_only_is_refused(
    open_topics: Open,
) -> None:
    topics = await open_topics()
    await topics.create("a.b_c")
    for name in ("a_b_c", "a.b.c", "a_b.c"):
        with pytest.raises(RequestError, match=r"differs from 'a\.b_c'") as refusal:
            await topics.create(name)
        assert refusal.value.code is ErrorCode.invalid_topic_exception
    await topics.create("a-b-c")


async def test_changes_of_a_topic_that_is_not_there_are_refused(open_topics: Open) -> None:
    topics = await open_topics()
    for change in (topics.grow("no", 2), topics.configure("no", dict)):
        with pytest.raises(RequestError) as refusal:
            await change
        assert refusal.value.code is ErrorCode.unknown_topic_or_partition


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_deletion_that_a_crash_interrupted_is_finished_at_the_start(
    open_topics: Open, tmp_path: Path
) -> None:
    topics = await open_topics()
    await topics.create("flights")
    await topics.close()
    directory = tmp_path / "topics" / "flights"
    (directory / "topic.json").rename(directory / "deleted")
    again = await open_topics(clean=False)
    assert again.get("flights") is None
    assert not directory.exists()


async def test_a_deletion_that_the_disk_interrupted_does_not_stand_in_the_way(
    open_topics: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: PartitionLog) -> None:
        raise OSError("no")

    topics = await open_topics()
    await topics.create("flights")
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "delete", fail)
        with pytest.raises(OSError, match="no"):
            await topics.delete("flights")
    assert topics.get("flights") is None
    topic = await topics.create("flights", 2)
    assert [each.log.next_offset for each in topic.partitions] == [0, 0]
    assert not (tmp_path / "topics" / "flights" / "deleted").exists()


async def test_a_creation_that_a_crash_interrupted_leaves_nothing(
    open_topics: Open, tmp_path: Path
) -> None:
    (tmp_path / "unfinished" / "0123").mkdir(parents=True)
    topics = await open_topics(clean=False)
    assert list(topics) == []
    assert list((tmp_path / "unfinished").iterdir()) == []


async def test_a_creation_that_fails_leaves_nothing(
    open_topics: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("too many open files")

    topics = await open_topics()
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "open", fail)
        with pytest.raises(OSError, match="too many"):
            await topics.create("flights")
    assert list((tmp_path / "topics").iterdir()) == []
    await topics.create("flights")


@pytest.mark.parametrize("content", [None, b"{}", b'{"name": "t"'])
async def test_a_directory_that_is_no_topic_is_neither_used_nor_removed(
    open_topics: Open, tmp_path: Path, content: bytes | None
) -> None:
    directory = tmp_path / "topics" / "t"
    directory.mkdir(parents=True)
    if content is not None:
        (directory / "topic.json").write_bytes(content)
    with pytest.raises(BrokerError, match="is not a topic"):
        await open_topics()
    assert directory.exists()


async def test_when_one_log_cannot_be_opened_the_others_are_closed(
    open_topics: Open, tmp_path: Path
) -> None:
    topics = await open_topics()
    await topics.create("a")
    await topics.create("b")
    await topics.close()
    log = tmp_path / "topics" / "b" / "0"
    for file in log.iterdir():
        file.unlink()
    log.rmdir()
    log.write_bytes(b"")
    index = tmp_path / "topics" / "a" / "0" / "00000000000000000000.timeindex"
    index.unlink()
    index.mkdir()  # no close can replace it
    before = open_files()
    with pytest.raises(BrokerError, match="cannot be opened"):
        await open_topics(clean=False)
    assert open_files() == before


async def test_partitions_that_were_half_added_are_added_again(open_topics: Open) -> None:
    topics = await open_topics()
    topic = await topics.create("flights")
    directory = topic.partitions[0].log.directory
    stray = directory.with_name("1")
    PartitionLog.open(stray, topic.config, clean=False).close()  # a crash came in between
    grown = await topics.grow("flights", 3)
    assert [each.log.next_offset for each in grown.partitions] == [0, 0, 0]


async def test_partitions_whose_description_fails_to_sync_leave_a_broker_that_starts(
    open_topics: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = await open_topics()
    await topics.create("flights", 1)
    description = tmp_path / "topics" / "flights" / DESCRIPTION
    before = description.read_bytes()
    sync = os.fsync

    def fail(file: int) -> None:
        if description.read_bytes() != before:  # it has its name, which cannot be synced
            raise OSError(5, os.strerror(5))
        sync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            await topics.grow("flights", 2)
    await topics.close()
    topics = await open_topics()
    assert len(topics.all[0].partitions) == 2
    assert len((await topics.grow("flights", 3)).partitions) == 3


async def test_a_kill_while_a_topic_is_removed_leaves_a_broker_that_starts(
    open_topics: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = await open_topics()
    await topics.create("t", 2)
    await topics.create("kept")
    with monkeypatch.context() as killed:

        def remove_some(directory: Path) -> None:
            """As far as a kill lets it come; the mark of the deletion goes first."""
            (directory / "deleted").unlink(missing_ok=True)

        killed.setattr(shutil, "rmtree", remove_some)
        await topics.delete("t")
    reopened = await open_topics()
    assert [topic.name for topic in reopened] == ["kept"]
    assert [each.name for each in (tmp_path / "topics").iterdir()] == ["kept"]


async def test_a_missing_log_of_a_partition_is_not_taken_for_an_empty_one(
    open_topics: Open, tmp_path: Path
) -> None:
    topics = await open_topics()
    await topics.create("t", 2)
    await topics.close()
    shutil.rmtree(tmp_path / "topics" / "t" / "1")
    with pytest.raises(BrokerError, match="t/1 is missing: the log of a partition"):
        await open_topics()
    (tmp_path / "topics" / "t" / "1").mkdir()
    await open_topics()


async def test_a_changed_byte_in_the_description_of_a_topic_is_noticed(
    open_topics: Open, tmp_path: Path
) -> None:
    topics = await open_topics()
    await topics.create("t", 2, {"retention.ms": "100000"})
    await topics.close()
    path = tmp_path / "topics" / "t" / "topic.json"
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x01]) + content[at + 1 :])
        with pytest.raises(BrokerError, match="is not a topic"):
            await open_topics()
    by_hand = re.sub(rb',"checksum":"[0-9a-f]+"', b"", content).replace(b"100000", b"200000")
    path.write_bytes(by_hand)
    topic = (await open_topics()).get("t")
    assert topic is not None
    assert topic.config.retention_ms == 200_000
