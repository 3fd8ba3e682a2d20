"""The consumer on aiokafka: membership and offsets by aiokafka, records as whole raw batches."""
# ruff: noqa: SLF001  aiokafka's internals; framework.kafka.contract checks them

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import aiokafka
import anyio
import structlog
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import IllegalStateError, KafkaError

from framework.decode.decoder import Decoder, warm_up
from framework.errors import CommitFenced, ConsumerError
from framework.kafka.connecting import connect, disconnect, require_topics
from framework.kafka.contract import coordinator_mismatch, fetcher_mismatch
from framework.kafka.fallback import RecordFetcher
from framework.kafka.fetch import BatchFetcher
from framework.kafka.offsets import Membership, commit_offsets, fetch_offsets
from framework.kafka.positions import LOST_POSITION, Beginnings, mend_position
from framework.record import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from framework.consumer import CommitOffset, Listener
    from framework.kafka.connection import ConsumerConfig
    from framework.record import Batch

_Callback: TypeAlias = "Callable[[frozenset[TopicPartition]], Coroutine[Any, Any, None]]"

__all__ = ["KafkaConsumer"]

_log = structlog.get_logger(__name__)

_NEVER_MS = 10 * 365 * 24 * 3600 * 1000
_JOIN_GRACE = 5.0  # seconds


class KafkaConsumer:
    """A `Consumer` on aiokafka; see there for what each method promises.

    The group's assignor is "sticky" (KIP-54), so most partitions stay where they are in a rebalance.
    Nothing is committed but by `commit`. Slow processing never costs the membership: only missed
    heartbeats do, and those are sent by a task of their own.

    Args:
        on_skip: told of a partition where reading goes on after records that it has not read
            (`on_out_of_range`).
    """

    def __init__(
        self,
        config: ConsumerConfig,
        *,
        on_skip: Callable[[TopicPartition], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._on_skip = on_skip
        self._beginnings = Beginnings(frozenset(), frozenset())
        self._consumer: Any = None
        # aiokafka keeps an assignor's memory in its class: so, one class for each consumer.
        self._assignor: Any = type("StickyAssignor", (StickyPartitionAssignor,), {})
        self._fetcher: BatchFetcher | RecordFetcher | None = None
        self._membership = Membership()
        # As of `_membership`: aiokafka forgets its assignment when a pattern finds a new topic, before
        # it tells us to let go, and commits must still pass then.
        self._partitions: frozenset[TopicPartition] = frozenset()
        self._failure: Exception | None = None
        self._stopped = False

    @property
    def generation(self) -> int:
        """See `Consumer.generation`: that of the last assignment."""
        return self._membership.generation

    @property
    def member_id(self) -> str:
        """See `Consumer.member_id`."""
        return self._membership.member_id

    async def start(self, listener: Listener) -> None:
        """See `Consumer.start`. Compiles the decoder first, where that was not done before."""
        await anyio.to_thread.run_sync(warm_up)
        try:
            await self._connect(listener)
        except BaseException:
            await self.stop()
            raise

    async def _connect(self, listener: Listener) -> None:
        config = self._config
        options = config.client_options()
        # The broker answers a JoinGroup when the slowest member has let go of its partitions.
        longest = round((config.rebalance_timeout + _JOIN_GRACE) * 1000)
        options["request_timeout_ms"] = max(options["request_timeout_ms"], longest)
        self._consumer = consumer = aiokafka.AIOKafkaConsumer(
            group_id=config.group,
            group_instance_id=config.group_instance_id,
            partition_assignment_strategy=[self._assignor],
            enable_auto_commit=False,
            auto_offset_reset="none",  # `mend_position` knows when which policy is meant
            isolation_level=config.isolation_level,
            max_partition_fetch_bytes=config.max_partition_fetch_bytes,
            fetch_max_bytes=config.fetch_max_bytes,
            fetch_min_bytes=config.fetch_min_bytes,
            fetch_max_wait_ms=round(config.fetch_max_wait * 1000),
            session_timeout_ms=round(config.session_timeout * 1000),
            heartbeat_interval_ms=round(config.heartbeat_interval * 1000),
            rebalance_timeout_ms=round(config.rebalance_timeout * 1000),
            max_poll_interval_ms=_NEVER_MS,
            **options,
        )
        await connect(consumer, config)
        if mismatch := coordinator_mismatch(consumer):
            raise ConsumerError(
                f"aiokafka {aiokafka.__version__} does not fit this version of kmr"
                f" (missing: {mismatch}): install aiokafka 0.14"
            )
        await require_topics(consumer._client, config, config.topics)
        self._beginnings = await Beginnings.look(consumer, config)
        self._fetcher = await self._choose_fetcher()
        callbacks = _Callbacks(
            partial(self._on_revoked, listener), partial(self._on_assigned, listener)
        )
        if config.topic_pattern is not None:
            consumer.subscribe(pattern=f"^(?:{config.topic_pattern})$", listener=callbacks)
        else:
            consumer.subscribe(config.topics, listener=callbacks)

    async def _choose_fetcher(self) -> BatchFetcher | RecordFetcher:
        consumer = self._consumer
        if mismatch := fetcher_mismatch(consumer):
            _log.warning(
                "aiokafka's fetcher has changed: reading record by record, ten times slower",
                version=aiokafka.__version__,
                missing=mismatch,
                advice="install aiokafka 0.14",
            )
            return RecordFetcher(consumer)
        # Not subscribed yet, so its fetcher has nothing and does nothing.
        await consumer._fetcher.close()
        decoder = Decoder(read_committed=self._config.isolation_level == "read_committed")
        fetcher = BatchFetcher(consumer._fetcher, decoder, self._config.auto_offset_reset)
        consumer._fetcher = fetcher
        return fetcher

    async def stop(self) -> None:
        """See `Consumer.stop`."""
        if self._consumer is None or self._stopped:
            return
        self._stopped = True
        await disconnect(self._consumer, self._config.stop_timeout)
        self._membership = Membership()
        if self._fetcher is not None:
            self._fetcher.wake()

    async def poll(self) -> list[Batch]:
        """See `Consumer.poll`."""
        while True:
            fetcher = self._started()
            if self._failure is not None:
                raise self._failure
            try:
                self._consumer._coordinator.check_errors()
                batches = fetcher.take()
                if batches:
                    return batches
                await fetcher.wait()
            except LOST_POSITION as error:
                partition = await mend_position(
                    self._consumer, error, self._config, self._beginnings, self._on_skip
                )
                if isinstance(fetcher, RecordFetcher):
                    fetcher.forget(partition)
            except KafkaError as error:
                raise ConsumerError(f"group {self._config.group}: {error}") from error

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """See `Consumer.pause`."""
        if assigned := self._assigned(partitions):
            self._consumer.pause(*assigned)
            self._started().wake()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """See `Consumer.resume`."""
        if assigned := self._assigned(partitions):
            self._consumer.resume(*assigned)
            self._started().wake()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """See `Consumer.seek`."""
        fetcher = self._started()
        try:
            self._consumer.seek(aiokafka.TopicPartition(*partition), offset)
        except IllegalStateError as error:
            raise ConsumerError(f"cannot seek {partition}: it is not assigned to us") from error
        if isinstance(fetcher, RecordFetcher):
            fetcher.forget(partition)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommitOffset | None]:
        """See `Consumer.committed`."""
        self._started()
        return await fetch_offsets(
            self._consumer._coordinator, partitions, self._config.request_timeout
        )

    async def beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See `Consumer.beginnings`."""
        self._started()
        return await self._beginnings.find(self._consumer, self._config, partitions)

    async def commit(self, offsets: Mapping[TopicPartition, CommitOffset]) -> None:
        """See `Consumer.commit`."""
        self._started()
        for partition in offsets:
            if partition not in self._partitions:
                raise CommitFenced(
                    f"group {self._config.group}: {partition} is not assigned to us any more"
                )
        await commit_offsets(
            self._consumer._coordinator, self._membership, offsets, self._config.commit_timeout
        )

    def start_offset(self, partition: TopicPartition) -> int | None:
        """See `Consumer.start_offset`."""
        return self._started().start_offset(partition) if self._assigned([partition]) else None

    def end_offset(self, partition: TopicPartition) -> int | None:
        """See `Consumer.end_offset`."""
        for assigned in self._assigned([partition]):
            end: int | None = self._consumer.highwater(assigned)
            if self._config.isolation_level == "read_committed":
                stable = self._consumer.last_stable_offset(assigned)
                return end if stable is None or stable < 0 else int(stable)
            return end
        return None

    async def _on_revoked(self, listener: Listener, partitions: frozenset[TopicPartition]) -> None:
        """aiokafka's heartbeat task still runs while this is awaited; it is stopped only afterwards."""
        if self._fetcher is not None:
            self._fetcher.suspend()
        await self._tell(listener.revoked, partitions)

    async def _on_assigned(self, listener: Listener, partitions: frozenset[TopicPartition]) -> None:
        """aiokafka's heartbeat task starts only after this."""
        coordinator = self._consumer._coordinator
        self._membership = Membership(coordinator.generation, coordinator.member_id)
        self._partitions = partitions
        self._assignor.on_generation_assignment(coordinator.generation)
        await self._tell(self._require_topics, partitions)
        if await self._tell(listener.assigned, partitions) and self._fetcher is not None:
            self._fetcher.resume()

    async def _require_topics(self, _: frozenset[TopicPartition]) -> None:
        """Raises `ConsumerError` when a topic that we read is gone: nothing of it would ever come."""
        client, config = self._consumer._client, self._config
        if all(client.cluster.partitions_for_topic(topic) for topic in config.topics):
            return
        try:
            await require_topics(client, config, config.topics)
        except ConsumerError as error:
            raise ConsumerError(f"a topic has gone while it was read: {error}") from error

    async def _tell(self, callback: _Callback, partitions: frozenset[TopicPartition]) -> bool:
        """Call the listener. aiokafka would log what it raises, and go on: keep it for `poll`."""
        if self._stopped:
            return False
        try:
            await callback(partitions)
        except Exception as error:  # noqa: BLE001
            self._failure = self._failure or error
            if self._fetcher is not None:
                self._fetcher.wake()
            return False
        return True

    def _started(self) -> BatchFetcher | RecordFetcher:
        if self._fetcher is None or self._stopped:
            raise ConsumerError(f"the consumer is {'stopped' if self._stopped else 'not started'}")
        return self._fetcher

    def _assigned(self, partitions: Iterable[TopicPartition]) -> list[Any]:
        if self._fetcher is None or self._stopped:
            return []
        assigned = self._consumer.assignment()
        return [aiokafka.TopicPartition(*p) for p in partitions if p in assigned]


class _Callbacks(ConsumerRebalanceListener):  # type: ignore[misc]
    """What aiokafka wants to be given."""

    def __init__(self, revoked: _Callback, assigned: _Callback) -> None:
        self._revoked = revoked
        self._assigned = assigned

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        await self._revoked(frozenset(TopicPartition(*partition) for partition in revoked))

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        await self._assigned(frozenset(TopicPartition(*partition) for partition in assigned))
