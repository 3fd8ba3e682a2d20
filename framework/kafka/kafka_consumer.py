"""The consumer on aiokafka: membership and offsets by aiokafka, records as whole raw batches."""
# ruff: noqa: SLF001  aiokafka's internals, see kmr.kafka.fetching

from __future__ import annotations

import math
import time
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import aiokafka
import anyio
import structlog
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    IllegalStateError,
    InvalidSessionTimeoutError,
    KafkaError,
    TopicAuthorizationFailedError,
)

from ..errors import CommitFenced, ConsumerError
from ..formats.batch_decoder import BatchDecoder, warm_up
from ..record import TopicPartition
from ..service.threads import run_in_thread
from .admin import explain_refusal, log_offsets
from .connection import connect, disconnect, reach_broker, require_topics
from .fetching import BatchFetcher, require_aiokafka
from .group_offsets import Membership, commit_offsets, fetch_offsets
from .reading import read_range
from .start_positions import NO_POSITION, StartPositions, reset_position

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping

    from ..record import Batch
    from .connection import ConsumerConfig
    from .consumer import CommitOffset, RebalanceListener

_Callback: TypeAlias = "Callable[[frozenset[TopicPartition]], Coroutine[Any, Any, None]]"

_log = structlog.get_logger(__name__)

_NEVER_MS = 10 * 365 * 24 * 3600 * 1000
_JOIN_GRACE = 5.0  # seconds
_ENDS_AFTER = 10.0  # seconds without a fetch, after which the end of a partition is asked for
_SILENT_AFTER = 10.0  # seconds; heartbeats are more frequent
_MOST_PUT_OUT = 3
_FENCED_INSTANCE = 82
_REFUSALS = {
    81: "the group has as many members as the broker allows (GROUP_MAX_SIZE_REACHED). Run fewer workers, or "
    "raise group.max.size on the broker",
    _FENCED_INSTANCE: "another process has the group_instance_id {name} too, and each takes the place of the "
    "other. Give each a name of its own, or stop one of them",
}
"""By error code, those that aiokafka does not know."""
_ENDS_TIMEOUT = 2.0  # seconds; the gauges wait for it


class KafkaConsumer:
    """A `Consumer` on aiokafka; the protocol describes its methods.

    The assignor is "sticky" (KIP-54): most partitions stay where they are in a rebalance. Only `commit`
    commits. Slow processing never costs the membership, because a task of its own sends heartbeats.

    Args:
        on_skip: called with a partition in which records were skipped (`on_out_of_range`), and the offset
            where it goes on.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        *,
        on_skip: Callable[[TopicPartition, int], None] = lambda _partition, _offset: None,
    ) -> None:
        self._config = config
        self._on_skip = on_skip
        self._start_positions = StartPositions(frozenset(), frozenset())
        self._consumer: Any = None
        # They have the certificates that were read at the start.
        self._options: dict[str, Any] | None = None
        # aiokafka keeps an assignor's state in its class: so make one class for each consumer.
        self._assignor: Any = type("StickyAssignor", (StickyPartitionAssignor,), {})
        self._fetcher: BatchFetcher | None = None
        self._membership = Membership()
        self._partitions: frozenset[TopicPartition] = frozenset()  # the assignment of `_membership`
        self._failure: Exception | None = None
        self._stopped = False
        self._looked_up = -math.inf  # when the ends were
        self._joined_at = -math.inf
        self._unanswered = False
        self._put_out = 0  # consecutive fast evictions: another process has our instance id

    @property
    def generation(self) -> int:
        """See `Consumer.generation`: that of the last assignment."""
        return self._membership.generation

    @property
    def member_id(self) -> str:
        return self._membership.member_id

    async def reach(self) -> None:
        try:
            await reach_broker(self._config, self._options)
        except ConsumerError as error:
            if self._options is None or not self._config.tls_files:
                raise
            await reach_broker(self._config)
            raise ConsumerError(
                f"group {self._config.group}: the certificates of the start are not accepted any more, but "
                f"those that the same files have now are ({', '.join(self._config.tls_files)})"
            ) from error

    async def start(
        self, listener: RebalanceListener, admitted: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """See `Consumer.start`. Compiles the decoder first, unless that was done before."""
        require_aiokafka()
        await run_in_thread(warm_up)
        try:
            await self._connect()
            if admitted is not None:
                await admitted()
            self._subscribe(listener)
        except BaseException:
            await self.stop()
            raise

    async def _connect(self) -> None:
        config = self._config
        options = self._options = config.client_options()
        # The broker answers JoinGroup only when the slowest member has given up its partitions.
        longest = round((config.rebalance_timeout + _JOIN_GRACE) * 1000)
        options = options | {"request_timeout_ms": max(options["request_timeout_ms"], longest)}
        self._consumer = consumer = aiokafka.AIOKafkaConsumer(
            group_id=config.group,
            group_instance_id=config.group_instance_id,
            client_rack=config.client_rack,
            partition_assignment_strategy=[self._assignor],
            enable_auto_commit=False,
            auto_offset_reset="none",  # `reset_position` applies the policy
            isolation_level=config.isolation_level,
            max_partition_fetch_bytes=config.max_partition_fetch_bytes,
            fetch_max_bytes=config.fetch_max_bytes,
            fetch_max_wait_ms=round(config.fetch_max_wait * 1000),
            session_timeout_ms=round(config.session_timeout * 1000),
            heartbeat_interval_ms=round(config.heartbeat_interval * 1000),
            rebalance_timeout_ms=round(config.rebalance_timeout * 1000),
            max_poll_interval_ms=_NEVER_MS,
            **options,
        )
        await connect(consumer, config)
        self._note_refusals(consumer._coordinator)
        if config.topic_pattern is None:
            await require_topics(consumer._client, config, config.topics)
        else:
            await self._find_topics(consumer._client)
        self._start_positions = await StartPositions.look_up(consumer, config)
        await consumer._fetcher.close()  # it has fetched nothing yet: there is no subscription
        decoder = BatchDecoder(read_committed=config.isolation_level == "read_committed")
        self._fetcher = BatchFetcher(consumer._fetcher, decoder, config.auto_offset_reset)
        consumer._fetcher = self._fetcher

    def _subscribe(self, listener: RebalanceListener) -> None:
        """Let the client join the group."""
        config, consumer = self._config, self._consumer
        callbacks = _Callbacks(
            partial(self._on_revoked, listener), partial(self._on_assigned, listener)
        )
        if config.topic_pattern is None:
            consumer.subscribe(config.topics, listener=callbacks)
        else:
            # Not `subscribe(pattern=...)`: it matches the beginnings of names.
            matches = SimpleNamespace(match=config.subscription.__contains__)
            consumer._subscription.subscribe_pattern(pattern=matches, listener=callbacks)
            consumer._client.set_topics([])

    async def _find_topics(self, client: Any) -> None:
        """Learn of all topics; log if none matches yet."""
        await client.set_topics([])
        if not any(topic in self._config.subscription for topic in client.cluster.topics()):
            _log.warning("no topic matches yet", topic_pattern=self._config.topic_pattern)

    async def stop(self, *, leave: bool = False) -> None:
        if self._consumer is None or self._stopped:
            return
        self._stopped = True
        if leave and self._consumer._coordinator is not None:
            self._consumer._coordinator._group_instance_id = (
                None  # with one, aiokafka does not leave
            )
        await disconnect(self._consumer, self._config.stop_timeout)
        self._membership = Membership()
        if self._fetcher is not None:
            self._fetcher.wake()

    async def poll(self, max_bytes: int | None = None) -> list[Batch]:
        while True:
            fetcher = self._started()
            if self._failure is not None:
                raise self._failure
            try:
                self._consumer._coordinator.check_errors()
                batches = await self._take(fetcher, max_bytes)
                if batches:
                    return batches
                await fetcher.wait()
            except NO_POSITION as error:
                await reset_position(
                    self._consumer, error, self._config, self._start_positions, self._on_skip
                )
            except KafkaError as error:
                if self._failure is not None:
                    raise self._failure from error
                raise ConsumerError(self._refusal(error)) from error

    def _refusal(self, error: KafkaError) -> str:
        """Return the message of an error that no retry mends."""
        group = self._config.group
        if isinstance(error, TopicAuthorizationFailedError):
            topic = error.args[0] if error.args else ", ".join(self._config.topics)
            forbidden = f"read topic {topic}: it needs READ of the topic"
        elif isinstance(error, GroupAuthorizationFailedError):
            forbidden = "be a member: it needs READ of the group"
        elif isinstance(error, InvalidSessionTimeoutError):
            seconds = self._config.session_timeout
            return (
                f"group {group}: the brokers refuse session_timeout={seconds:g}: it must be from 6 s to 30 "
                "min, or what their group.min.session.timeout.ms and group.max.session.timeout.ms say"
            )
        else:
            return f"group {group}: {error}"
        return f"group {group}: we are not allowed to {forbidden}. Allow it, and start the worker again"

    async def _take(self, fetcher: BatchFetcher, max_bytes: int | None) -> list[Batch]:
        """Return what can be returned now, and what `poll` returns; an archive may have more."""
        return fetcher.take(max_bytes)

    def let_gather(self, seconds: float) -> None:
        self._started().let_gather(seconds)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        if assigned := self._assigned(partitions):
            self._consumer.pause(*assigned)
            self._started().wake()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        if assigned := self._assigned(partitions):
            self._consumer.resume(*assigned)
            self._started().wake()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._started()
        try:
            self._consumer.seek(aiokafka.TopicPartition(*partition), offset)
        except IllegalStateError as error:
            raise ConsumerError(f"cannot seek {partition}: it is not assigned to us") from error

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommitOffset | None]:
        self._started()
        return await fetch_offsets(
            self._consumer._coordinator, partitions, self._config.request_timeout
        )

    async def start_positions(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        self._started()
        return await self._start_positions.find(self._consumer, self._config, partitions)

    def read_range(self, partition: TopicPartition, first: int, end: int) -> AsyncGenerator[Batch]:
        """See `Consumer.read_range`: by a client of its own, without a group."""
        return read_range(self._config, partition, first, end)

    async def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        self._started()
        with explain_refusal(f"group {self._config.group}: the ends of the logs", self._config):
            return await log_offsets(self._consumer, "end", partitions)

    async def commit(self, offsets: Mapping[TopicPartition, CommitOffset]) -> None:
        self._started()
        member = self.membership(offsets)
        await commit_offsets(
            self._consumer._coordinator,
            member,
            offsets,
            self._config.commit_timeout,
            self._note_unanswered,
        )

    def _note_unanswered(self) -> None:
        self._unanswered = True

    @property
    def has_unanswered_commit(self) -> bool:
        return self._unanswered

    async def join_anew(self) -> None:
        """See `Consumer.join_anew`: under another member id, of which the broker knows no commit."""
        if self._fetcher is None or self._stopped:
            return
        coordinator = self._consumer._coordinator
        with anyio.move_on_after(self._config.commit_timeout):
            await coordinator._maybe_leave_group()
        coordinator.reset_generation()
        self._joined_at = -math.inf  # the next member id is no sign of another process

    def membership(self, partitions: Iterable[TopicPartition]) -> Membership:
        """See `Consumer.membership`: as of the last assignment."""
        for partition in partitions:
            if partition not in self._partitions:
                raise CommitFenced(
                    f"group {self._config.group}: {partition} is no longer assigned to us"
                )
        return self._membership

    def start_offset(self, partition: TopicPartition) -> int | None:
        fetcher = self._fetcher_of(partition)
        return None if fetcher is None else fetcher.start_offset(partition)

    def end_offset(self, partition: TopicPartition) -> int | None:
        fetcher = self._fetcher_of(partition)
        return None if fetcher is None else fetcher.end_offset(partition)

    async def look_up_ends(self) -> None:
        now = anyio.current_time()
        if self._fetcher is None or self._stopped or now - self._looked_up < _ENDS_AFTER:
            return
        self._looked_up = now
        # The next fetch tells too.
        with anyio.move_on_after(_ENDS_TIMEOUT), suppress(KafkaError, IllegalStateError):
            await self._fetcher.look_up_ends(now - _ENDS_AFTER)

    @property
    def silent(self) -> str | None:
        if self._fetcher is None or self._stopped:
            return None
        group, client = self._config.group, self._consumer._client
        if self._consumer._coordinator.coordinator_id is None:
            return f"group {group}: its coordinator does not answer"
        if self._fetcher.is_suspended:
            return None  # in a rebalance the coordinator answers when the slowest member has joined
        if nodes := self._fetcher.unreachable():
            return (
                f"group {group}: node {nodes[0]}, which leads partitions of ours, does not answer"
            )
        heard = max((each._last_action for each in client._conns.values()), default=-math.inf)
        if time.monotonic() - heard > _SILENT_AFTER:
            return f"group {group}: no broker answers its heartbeats"
        return None

    def answered_at(self, partition: TopicPartition) -> float | None:
        fetcher = self._fetcher_of(partition)
        return None if fetcher is None else fetcher.answered_at(partition)

    async def _on_revoked(
        self, listener: RebalanceListener, partitions: frozenset[TopicPartition]
    ) -> None:
        """aiokafka awaits this before it stops its heartbeat task."""
        if self._fetcher is not None:
            self._fetcher.suspend()
        await self._call(listener.revoked, partitions)

    async def _on_assigned(
        self, listener: RebalanceListener, partitions: frozenset[TopicPartition]
    ) -> None:
        """aiokafka awaits this before it starts its heartbeat task."""
        coordinator, before = self._consumer._coordinator, self._membership.member_id
        self._membership = Membership(
            coordinator.generation, coordinator.member_id, self._config.group_instance_id
        )
        self._partitions = partitions
        self._unanswered = False
        self._note_membership(before)
        self._assignor.on_generation_assignment(coordinator.generation)
        await self._call(self._require_topics, partitions)
        if await self._call(listener.assigned, partitions) and self._fetcher is not None:
            self._fetcher.resume()

    def _note_membership(self, before: str) -> None:
        """Fail when another process has our static name: each join of the one puts out the other.

        aiokafka's heartbeats do not have the name, so the brokers answer that they do not know the member,
        and not that it is fenced (KIP-345); aiokafka joins again.

        Args:
            before: our member id until now; empty for none.
        """
        now, joined = anyio.current_time(), self._joined_at
        self._joined_at = now
        if self._config.group_instance_id is None or before in ("", self.member_id):
            return
        # Sooner than a member that was silent is removed.
        self._put_out = self._put_out + 1 if now - joined < self._config.session_timeout else 0
        if self._put_out >= _MOST_PUT_OUT:
            self._fail_as_member(_FENCED_INSTANCE)

    def _note_refusals(self, coordinator: Any) -> None:
        """Fail with a reason for refusals of a join or a sync that are an UnknownError to aiokafka."""
        send = coordinator._send_req

        async def send_and_note(request: Any) -> Any:
            response = await send(request)
            self._fail_as_member(getattr(response, "error_code", 0))
            return response

        coordinator._send_req = send_and_note

    def _fail_as_member(self, code: int) -> None:
        """Let `poll` raise the reason why the broker does not want us as a member, if `code` is one."""
        reason = _REFUSALS.get(code)
        if reason is not None and self._failure is None:
            reason = reason.format(name=self._config.group_instance_id)
            self._failure = ConsumerError(f"group {self._config.group}: {reason}")

    async def _require_topics(self, _: frozenset[TopicPartition]) -> None:
        """Raise `ConsumerError` when a topic is gone: aiokafka would wait for it forever."""
        client, config = self._consumer._client, self._config
        if config.topic_pattern is not None:
            return  # a topic that is deleted leaves the assignment
        if all(client.cluster.partitions_for_topic(topic) for topic in config.topics):
            return
        try:
            await require_topics(client, config, config.topics)
        except ConsumerError as error:
            raise ConsumerError(f"a topic was deleted while it was read: {error}") from error

    async def _call(self, callback: _Callback, partitions: frozenset[TopicPartition]) -> bool:
        """Call the listener and keep its error for `poll` (aiokafka would only log it); return success."""
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

    def _started(self) -> BatchFetcher:
        if self._fetcher is None or self._stopped:
            raise ConsumerError(f"the consumer is {'stopped' if self._stopped else 'not started'}")
        return self._fetcher

    def _fetcher_of(self, partition: TopicPartition) -> BatchFetcher | None:
        """Return the fetcher if the partition is assigned to us."""
        if self._fetcher is None or self._stopped or partition not in self._consumer.assignment():
            return None
        return self._fetcher

    def _assigned(self, partitions: Iterable[TopicPartition]) -> list[Any]:
        if self._fetcher is None or self._stopped:
            return []
        assigned = self._consumer.assignment()
        return [aiokafka.TopicPartition(*p) for p in partitions if p in assigned]


class _Callbacks(ConsumerRebalanceListener):  # type: ignore[misc]
    """Converts the partitions of aiokafka's listener."""

    def __init__(self, revoked: _Callback, assigned: _Callback) -> None:
        self._revoked = revoked
        self._assigned = assigned

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        await self._revoked(frozenset(TopicPartition(*partition) for partition in revoked))

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        await self._assigned(frozenset(TopicPartition(*partition) for partition in assigned))
