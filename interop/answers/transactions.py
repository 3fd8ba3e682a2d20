"""Asks one broker for transactions of versions 1 and 2 (KIP-890), right and wrong; its answers by step."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import anyio

from kmr.broker.log.records import NewRecord, build_batch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from tests.broker.raw_client import RawClient

__all__ = ["DEVIATIONS", "Transactions", "differing"]

(
    _PRODUCE,
    _FIND_COORDINATOR,
    _CREATE,
    _INIT,
    _ADD,
    _END,
    _COMMIT,
) = (0, 10, 19, 22, 24, 26, 28)
_GROUPS, _TRANSACTIONS = 0, 1
_MINUTE: Final = timedelta(minutes=1)
_AGAIN: Final = {
    "concurrent_transactions",
    "coordinator_load_in_progress",
    "coordinator_not_available",
    "not_enough_replicas",
    "unknown_topic_or_partition",
}
_ATTEMPTS, _PAUSE = 100, 0.1

DEVIATIONS: Final[dict[str, str]] = {}
"""Steps whose answers differ, with the reason."""


class _Producer(NamedTuple):
    id: int
    epoch: int

    @property
    def next(self) -> _Producer:
        return self._replace(epoch=self.epoch + 1)


def differing(ours: dict[str, object], theirs: dict[str, object]) -> list[str]:
    """Return a line for each step whose answers differ without a reason, or whose reason explains nothing."""
    lines = [
        f"{step}: {ours.get(step)!r}, Apache Kafka {theirs.get(step)!r}"
        for step in {**ours, **theirs}
        if ours.get(step) != theirs.get(step) and step not in DEVIATIONS
    ]
    return lines + [
        f"{step}: explains nothing" for step in DEVIATIONS if ours.get(step) == theirs.get(step)
    ]


class Transactions:
    """One broker's answers; producer ids are counted from the first one of this run."""

    def __init__(self, client: RawClient) -> None:
        self.answers: dict[str, object] = {}
        self._client = client
        self._name = uuid4().hex  # of the topic; and the end of each transactional id
        self._first_id = 0

    async def ask(self) -> None:
        """Ask everything."""
        topic = {"name": self._name, "num_partitions": 3, "replication_factor": 1}
        await self._client.call(_CREATE, 7, timeout=_MINUTE, topics=[topic])
        for kind, key in ((_GROUPS, "g"), (_TRANSACTIONS, "x")):
            await self._until_found(kind, key)
        first = await self._init("x")
        self._first_id = first.id
        second = await self._without_records(first)
        third = await self._with_records(first, second)
        await self._after_the_end(second, third)
        await self._fenced()

    # -- scenarios

    async def _without_records(self, first: _Producer) -> _Producer:
        self._note("commit of nothing", await self._end(first, commit=True))
        self._note("abort of nothing", await self._end(first, commit=False))
        second = first.next
        self._note("abort again", await self._end(first, commit=False))
        self._note("commit after it", await self._end(first, commit=True))
        self._note("commit with the epoch afterwards", await self._end(second, commit=True))
        self._note("unknown producer", await self._end(_Producer(first.id + 500, 0), commit=True))
        self._note("unknown id", await self._end(second, commit=True, name="unknown"))
        self._note("epoch to come", await self._end(second.next.next, commit=True))
        return second

    async def _with_records(self, first: _Producer, second: _Producer) -> _Producer:
        self._note("Produce 11 first", await self._produce(second, 0, version=11))
        for version in (3, 4):
            answer = await self._commit_offset(second, version=version)
            self._note(f"TxnOffsetCommit {version} first", answer)
        self._note("Produce 12 from sequence 3", await self._produce(second, 3))
        self._note("Produce 12", await self._produce(second, 0))
        self._note("Produce 12 again", await self._produce(second, 0))
        self._note("Produce 12, epoch before", await self._produce(first, 1))
        self._note("Produce 12, epoch to come", await self._produce(second.next, 0))
        self._note("Produce 12, unknown id", await self._produce(second, 0, 2, name="unknown"))
        self._note("TxnOffsetCommit 5", await self._commit_offset(second))
        self._note("TxnOffsetCommit 5, epoch before", await self._commit_offset(first))
        for version in (4, 5):
            for verify, partitions in ((True, (0, 1)), (False, (1, 9)), (False, (2,))):
                step = f"AddPartitionsToTxn {version}, {verify=}, {partitions}"
                added = await self._add(second, version, partitions, verify=verify)
                self._note(step, added)
            for verify in (True, False):
                added = await self._add(first, version, (0,), verify=verify)
                self._note(f"AddPartitionsToTxn {version}, {verify=}, epoch before", added)
        for commit in (True, False):
            self._note(f"{commit=} with the epoch before", await self._end(first, commit=commit))
        self._note("commit", await self._end(second, commit=True))
        return second.next

    async def _after_the_end(self, second: _Producer, third: _Producer) -> None:
        self._note("late records", await self._produce(second, 1))
        self._note("late offsets", await self._commit_offset(second))
        for commit in (True, False):
            self._note(f"ended, {commit=} again", await self._end(second, commit=commit))
        self._note("InitProducerId again", await self._initialised("x", second))
        self._note("next transaction", await self._produce(third, 0))
        self._note("end of the one before", await self._end(second, commit=True))
        self._note("abort", await self._end(third, commit=False))
        fourth = third.next
        for commit in (True, False):
            answer = await self._end(fourth, commit=commit, version=4)
            self._note(f"EndTxn 4 after an abort, {commit=}", answer)

    async def _fenced(self) -> None:
        zombie = await self._init("x")
        self._note("records of the zombie", await self._produce(zombie, 0))
        producer = await self._init("x")
        self._note("the producer is newer", producer > zombie)
        for commit in (True, False):
            self._note(f"zombie, {commit=}", await self._end(zombie, commit=commit))
        self._note("late records of the zombie", await self._produce(zombie, 1))
        self._note("offsets of the zombie", await self._commit_offset(zombie))

    # -- requests

    async def _until_found(self, kind: int, key: str) -> None:
        async def find() -> str:
            asked = {"key_type": kind, "coordinator_keys": [key]}
            answer = await self._client.call(_FIND_COORDINATOR, 4, **asked)
            return str(answer.coordinators[0].error_code.name)

        await _settled(find)

    async def _initialised(self, name: str, expected: _Producer | None = None) -> tuple[str, Any]:
        identity = expected or _Producer(-1, -1)
        answer: Any = None

        async def initialise() -> str:
            nonlocal answer
            answer = await self._client.call(
                _INIT,
                5,
                transactional_id=name + self._name,
                transaction_timeout=_MINUTE,
                producer_id=identity.id,
                producer_epoch=identity.epoch,
            )
            return str(answer.error_code.name)

        code = await _settled(initialise)
        return code, self._counted(_Producer(answer.producer_id, answer.producer_epoch))

    async def _init(self, name: str) -> _Producer:
        _, (producer_id, epoch) = await self._initialised(name)
        return _Producer(producer_id + self._first_id, epoch)

    async def _produce(
        self,
        producer: _Producer,
        sequence: int,
        partition: int = 0,
        *,
        version: int = 12,
        name: str = "x",
    ) -> str:
        records = build_batch(
            [NewRecord(None, b"v", (), int(time.time() * 1000))],
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        sent = {"index": partition, "records": bytes(records)}

        async def produce() -> str:
            answer = await self._client.call(
                _PRODUCE,
                version,
                transactional_id=name + self._name,
                acks=-1,
                topic_data=[{"name": self._name, "partition_data": [sent]}],
            )
            return str(answer.responses[0].partition_responses[0].error_code.name)

        return await _settled(produce)

    async def _commit_offset(self, producer: _Producer, *, version: int = 5) -> str:
        offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}

        async def commit() -> str:
            answer = await self._client.call(
                _COMMIT,
                version,
                transactional_id="x" + self._name,
                group_id="g",
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                topics=[{"name": self._name, "partitions": [offset]}],
            )
            return str(answer.topics[0].partitions[0].error_code.name)

        return await _settled(commit)

    async def _add(
        self, producer: _Producer, version: int, partitions: Iterable[int], *, verify: bool
    ) -> dict[int, str]:
        asked = {
            "transactional_id": "x" + self._name,
            "producer_id": producer.id,
            "producer_epoch": producer.epoch,
            "verify_only": verify,
            "topics": [{"name": self._name, "partitions": list(partitions)}],
        }
        answer = await self._client.call(_ADD, version, transactions=[asked])
        results = answer.results_by_transaction[0].topic_results[0].results_by_partition
        return {each.partition_index: each.partition_error_code.name for each in results}

    async def _end(
        self, producer: _Producer, *, commit: bool, version: int = 5, name: str = "x"
    ) -> tuple[str, Any]:
        answer: Any = None

        async def end() -> str:
            nonlocal answer
            answer = await self._client.call(
                _END,
                version,
                transactional_id=name + self._name,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                committed=commit,
            )
            return str(answer.error_code.name)

        code = await _settled(end)
        if version < 5:
            return code, None
        return code, self._counted(_Producer(answer.producer_id, answer.producer_epoch))

    def _counted(self, producer: _Producer) -> tuple[int, int]:
        known = producer.id >= 0
        return (producer.id - self._first_id if known else producer.id), producer.epoch

    def _note(self, step: str, answer: object) -> None:
        self.answers[step] = answer


async def _settled(ask: Callable[[], Awaitable[str]]) -> str:
    """Ask until the answer is not that the client should try again."""
    code = await ask()
    for _ in range(_ATTEMPTS):
        if code not in _AGAIN:
            break
        await anyio.sleep(_PAUSE)
        code = await ask()
    return code
