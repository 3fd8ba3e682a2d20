from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import split_batches
from kmr.broker.server.buffers import ReceiveMemory, RequestBuffers
from kmr.broker.storage.group_commit import GroupCommit
from kmr.broker.topics.topic import Partition

KIB = 1024
MIB = 1024 * KIB


def test_beginnings_of_large_requests_leave_memory_for_usual_ones() -> None:
    buffers = RequestBuffers(64 * MIB)
    large, usual = buffers.pool_for(16 * MIB), buffers.pool_for(MIB)
    while large.take(MIB) is not None:
        pass
    assert large.used == 40 * MIB
    begun = usual.take(MIB)
    assert begun is not None
    usual.put(begun)
    assert (buffers.small.used, buffers.large.used) == (0, 40 * MIB)


async def test_received_batches_stay_until_they_are_written_and_then_make_room(
    tmp_path: Path, batch: Callable[..., bytes]
) -> None:
    partition = Partition("t", 0, PartitionLog.open(tmp_path / "0", LogConfig(), clean=True))
    buffers, sent = RequestBuffers(8 * MIB), [batch(b"%d" % at * 30_000) for at in range(20)]
    with ThreadPoolExecutor(1) as threads:
        commits = GroupCommit(sync=False, executor=threads)
        intake = ReceiveMemory(buffers, commits)
        first = intake.room()
        for data in sent:  # more than the memory of one intake
            intake.room()[: len(data)] = data
            chunk, start, end = intake.received(len(data))
            received = chunk[start:end]
            partition.log.append(received, split_batches(received), now_ms=0)
            commits.add(partition, len(data))
            intake.handled()
        commits.write()
        assert len(intake.room()) == len(first)
    buffer = memoryview(bytearray(MIB))
    size = partition.log.read_into(0, buffer).size
    partition.log.close()
    assert [buffer[h.position : h.end][61:] for h in split_batches(buffer[:size])] == [
        each[61:] for each in sent
    ]
    assert buffers.small.used == 0


def test_memory_that_is_taken_away_from_the_intake_counts_until_it_is_put_back() -> None:
    buffers = RequestBuffers(MIB)
    with ThreadPoolExecutor(1) as threads:
        intake = ReceiveMemory(buffers, GroupCommit(sync=False, executor=threads))
        intake.room()[:3] = b"abc"
        intake.received(3)
        taken = intake.take_away()
        intake.room()[:3] = b"xyz"
    assert bytes(taken[:3]) == b"abc"
    assert buffers.small.used == len(taken)
    buffers.small.put(taken)
    assert buffers.small.used == 0
