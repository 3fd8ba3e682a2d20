"""Fetching whole responses: aiokafka's fetcher, with its record objects replaced by batches.

aiokafka does what is hard to do twice: leaders, reconnecting, offset resets, assignments. This module
changes three things in it, all on one object of one consumer:

- a response of a partition becomes one lazy `Batch` instead of thousands of record objects;
- what was fetched for a paused partition is kept, where aiokafka drops it and fetches it again;
- a partition that waits to be polled holds back its node's next fetch (which so brings all partitions
  at once), and a paused one does not.

While polled batches are processed, the next response is already on its way: at most one per node.
"""
# ruff: noqa: SLF001  aiokafka's internals; framework.kafka.contract checks them

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiokafka.errors
import structlog
from aiokafka.consumer.fetcher import Fetcher, FetchError, OffsetResetStrategy

from framework.errors import ConsumerError, CorruptRecords
from framework.record import TopicPartition

if TYPE_CHECKING:
    from framework.decode.decoder import Decoder
    from framework.kafka.connection import OffsetReset
    from framework.record import Batch

__all__ = ["BatchFetcher"]

_log = structlog.get_logger(__name__)

# While some partitions are left out of a fetch, the broker must answer soon even when the others have
# nothing: a node answers one fetch after the other, and they may be wanted again before that.
_PARTIAL_WAIT_MS = 50
_HOLD = (
    1.0  # seconds; until the fetch routine looks again at whether a partition is still not polled
)


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A batch that waits for `take`; stands where aiokafka keeps its `FetchResult`."""

    batch: Batch
    state: Any

    def calculate_backoff(self) -> float:
        """How long its node's next fetch should wait, in seconds; called by the fetch routine."""
        return 0.0 if self.state.paused else _HOLD


class BatchFetcher(Fetcher):  # type: ignore[misc]
    """Stands in for aiokafka's fetcher in one consumer.

    Args:
        replaced: the consumer's own fetcher, closed, whose settings this one takes over.
        decoder: makes batches of responses.
        reset: where to begin without a committed offset; unless it is "earliest", `take` raises, because
            not every partition begins at the end then: see `framework.kafka.positions`.
    """

    def __init__(self, replaced: Any, decoder: Decoder, reset: OffsetReset) -> None:
        super().__init__(
            replaced._client,
            replaced._subscriptions,
            fetch_min_bytes=replaced._fetch_min_bytes,
            fetch_max_bytes=replaced._fetch_max_bytes,
            fetch_max_wait_ms=replaced._fetch_max_wait_ms,
            max_partition_fetch_bytes=replaced._max_partition_fetch_bytes,
        )
        self._retry_backoff = replaced._retry_backoff
        self._isolation_level = replaced._isolation_level
        self._default_reset_strategy = (
            OffsetResetStrategy.EARLIEST if reset == "earliest" else OffsetResetStrategy.NONE
        )
        self._decoder = decoder
        self._whole_wait_ms = replaced._fetch_max_wait_ms
        self._suspended = True
        self._troubled: set[TopicPartition] = set()
        self._unreachable: set[int] = set()
        self._start_offsets: dict[TopicPartition, int] = {}
        self._fetch_task.add_done_callback(lambda _: self.wake())

    def suspend(self) -> None:
        """From now on `take` returns nothing and nothing new is fetched."""
        self._suspended = True

    def resume(self) -> None:
        """Undo `suspend`, for a new assignment."""
        self._suspended = False
        self._start_offsets.clear()
        self._troubled.clear()
        self.wake()

    def wake(self) -> None:
        """Something has changed: `wait` returns, and the fetch routine looks what it can fetch."""
        for waiter in self._fetch_waiters:
            self._notify(waiter)
        self._notify(self._wait_consume_future)

    def start_offset(self, partition: TopicPartition) -> int | None:
        """The first offset of the log, as the last response said."""
        return self._start_offsets.get(partition)

    def take(self) -> list[Batch]:
        """Everything that has arrived for partitions that are not paused; moves their positions.

        Raises the error of a partition that has failed, once, before anything is taken.
        """
        subscription = self._subscriptions.subscription
        if self._suspended or subscription is None or self._subscriptions.reassignment_in_progress:
            return []
        for partition, item in self._records.items():
            if isinstance(item, FetchError):
                del self._records[partition]
                self._notify(self._wait_consume_future)
                item.check_raise()
        batches: list[Batch] = []
        for partition, item in list(self._records.items()):
            state = subscription.assignment.state_value(partition)
            if item.state is state and state.paused:
                continue
            del self._records[partition]
            # Another state: of an assignment that is over. Another position: a seek came in between.
            current = item.state is state and state.has_valid_position
            if current and state.position == item.batch.first:
                state.consumed_to(item.batch.last + 1)
                batches.append(item.batch)
        self._notify(self._wait_consume_future)
        return batches

    async def wait(self) -> None:
        """Until there may be something to take, or to be told.

        Raises:
            KafkaError: group membership has failed for good.
        """
        if self._fetch_task.done() and not self._closed:
            cause = None if self._fetch_task.cancelled() else self._fetch_task.exception()
            raise ConsumerError(f"the Kafka client has stopped fetching: {cause!r}") from cause
        await self._create_fetch_waiter()

    def _get_actions_per_node(self, assignment: Any) -> Any:
        if self._suspended:
            return [], {}, self._fetcher_timeout, False, []
        partial = any(
            partition in self._records or assignment.state_value(partition).paused
            for partition in assignment.tps
        )
        self._fetch_max_wait_ms = (
            min(_PARTIAL_WAIT_MS, self._whole_wait_ms) if partial else self._whole_wait_ms
        )
        return super()._get_actions_per_node(assignment)

    async def _proc_fetch_request(self, assignment: Any, node_id: int, request: Any) -> bool:
        """Send one fetch and keep what it brings; returns whether `take` has something new."""
        try:
            response = await self._client.send(node_id, request)
            self._unreachable.discard(node_id)
            if not assignment.active:
                return False
            arrived, trouble = self._receive(assignment, request, response)
            if trouble and not arrived:
                await asyncio.sleep(self._retry_backoff)
        except aiokafka.errors.KafkaError as error:
            if node_id not in self._unreachable:  # once, however often it is tried
                self._unreachable.add(node_id)
                _log.warning("fetch failed, trying again", node=node_id, reason=str(error))
            try:
                await asyncio.sleep(self._retry_backoff)
            except asyncio.CancelledError:
                return False
        except asyncio.CancelledError:
            # The routine that started this task cancels it only to forget it, and awaits it bare.
            return False
        else:
            return arrived
        return False

    def _receive(self, assignment: Any, request: Any, response: Any) -> tuple[bool, bool]:
        """Keep the batches of a response; returns whether there were any, and any trouble."""
        asked = {
            TopicPartition(topic, partition): offset
            for topic, partitions in request.topics
            for partition, offset, _ in partitions
        }
        arrived = trouble = False
        for topic, partitions in response.topics:
            for number, code, end, *rest in partitions:
                partition = TopicPartition(topic, number)
                state = assignment.state_value(partition)
                first = asked[partition]
                if not state.has_valid_position or state.position != first:
                    continue  # a seek came in between
                if code != 0:
                    arrived |= self._fail(partition, first, aiokafka.errors.for_code(code))
                    trouble = True
                    continue
                self._troubled.discard(partition)
                data, aborted = self._unpack(partition, state, end, rest)
                try:
                    batch = self._decoder.batch(topic, number, data, first, aborted)
                except CorruptRecords as error:
                    self._set_error(partition, error)
                    arrived = True
                    continue
                if batch is not None:
                    self._records[partition] = _Fetched(batch, state)
                    arrived = True
        return arrived, trouble

    def _unpack(
        self, partition: TopicPartition, state: Any, end: int, rest: list[Any]
    ) -> tuple[bytes, list[tuple[int, int]]]:
        """The records and aborted transactions of a partition, whose fields depend on the version.

        v0: records; v4: last stable offset, aborted, records; v5: log start offset after the first;
        v11: preferred replica before the records.
        """
        state.highwater = end
        if len(rest) == 1:
            return rest[0], []
        state.lso = rest[0]
        if len(rest) > 3:
            self._start_offsets[partition] = rest[1]
        aborted = rest[1] if len(rest) == 3 else rest[2]
        return rest[-1], aborted or []

    def _fail(self, partition: TopicPartition, offset: int, error: Any) -> bool:
        """A partition answered with an error; returns whether `take` should tell."""
        errors = aiokafka.errors
        if error is errors.OffsetOutOfRangeError:
            self._set_error(partition, error({partition: offset}))
            return True
        if error is errors.TopicAuthorizationFailedError:
            self._set_error(partition, error(partition.topic))
            return True
        self._client.force_metadata_update()
        if partition not in self._troubled:
            self._troubled.add(partition)
            _log.warning(
                "fetch refused, trying again", partition=str(partition), reason=error.__name__
            )
        return False
