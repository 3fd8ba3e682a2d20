"""Fetch whole responses: aiokafka's fetcher, with its record objects replaced by batches.

aiokafka does the parts that are hard to write twice: leaders, reconnecting, offset resets, assignments.
This module replaces the fetcher of one consumer, and changes four things in it:

- a response of a partition becomes one lazy `Batch` instead of thousands of record objects;
- a batch of a paused partition is kept, where aiokafka drops it and fetches it again (unless as much as
  a whole response is kept already: there may be hundreds of paused partitions);
- a partition that waits to be polled delays its node's next fetch (which then brings all partitions
  at once); a paused partition does not;
- a fetch names the partitions that have changed only (`kmr.kafka.fetch_sessions`), and it can be made to wait
  while records gather (`BatchFetcher.let_gather`).

While polled batches are processed, the next response is already on its way: at most one per node.

None of these internals is public, so aiokafka is pinned to a minor version, which `require_aiokafka` checks
at start. `tests/framework/kafka/test_fetching.py` lists them, and fails when one of them changes.
"""
# ruff: noqa: SLF001  aiokafka's internals

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import aiokafka
import aiokafka.errors
import anyio
import structlog
from aiokafka.consumer.fetcher import READ_COMMITTED, Fetcher, FetchError, OffsetResetStrategy

from ..errors import ConsumerError, CorruptRecords
from ..formats.batch_decoder import FetchedPart
from ..record import TopicPartition
from .fetch_sessions import FetchSession

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..formats.batch_decoder import BatchDecoder
    from ..record import Batch
    from ..settings import OffsetReset

_log = structlog.get_logger(__name__)

# While some partitions are left out of a fetch, the broker must answer soon even when the others have no
# records: a node answers one fetch at a time, and the missing ones may be wanted again before that.
_PARTIAL_WAIT_MS = 50
_NEVER_MS = 24 * 3600 * 1000  # the caller has a timeout
_LONGEST_LOOK = 5.0  # seconds between two looks for the leader of a partition
_POLL_GRACE = 1.0  # seconds that a fetch waits for the batches of the one before to be polled

AIOKAFKA_VERSION = "0.14."
"""The prefix of the versions of aiokafka that kmr works with, as in pyproject.toml."""


def require_aiokafka(version: str = aiokafka.__version__) -> None:
    """Check the installed version: the internals that `kmr.kafka` uses differ between versions.

    Raises `ConsumerError`, which names the version to install.
    """
    if not version.startswith(AIOKAFKA_VERSION):
        wanted = f"{AIOKAFKA_VERSION}*"
        raise ConsumerError(
            f"aiokafka {version} is installed, but kmr needs {wanted}: "
            f"run pip install 'aiokafka=={wanted}'"
        )


class FetchedPartition(NamedTuple):
    """The part of a fetch response that is about one partition.

    Attributes:
        error: Kafka's error code; 0 for none. The fields below are meaningful only then.
        high_watermark: the offset after the last record, -1 if unknown.
        data: record batches as they are on the wire.
        last_stable: the first offset of the oldest open transaction; None before version 4.
        log_start: the first offset of the log; None before version 5.
        aborted: producer id and first offset of each aborted transaction in `data`.
        preferred_replica: the node to fetch from, -1 for the leader; None before version 11.
    """

    topic: str
    partition: int
    error: int
    high_watermark: int
    data: bytes | memoryview
    last_stable: int | None
    log_start: int | None
    aborted: list[tuple[int, int]]
    preferred_replica: int | None = None


def unpack_response(response: Any) -> Iterator[FetchedPartition]:
    """Unpack aiokafka's fetch response of any version from 0 to 11.

    After the high watermark follow: in v0 the records; since v4 last stable offset, aborted transactions,
    records; v5 adds the log start offset after the first of these; v11 a preferred replica before the last.
    """
    for topic, partitions in response.topics:
        for number, code, high_watermark, *rest in partitions:
            versioned = len(rest) > 1
            aborted = rest[1 if len(rest) == 3 else 2] if versioned else None
            yield FetchedPartition(
                topic,
                number,
                code,
                high_watermark,
                rest[-1],
                last_stable=rest[0] if versioned else None,
                log_start=rest[1] if len(rest) > 3 else None,
                aborted=aborted or [],
                preferred_replica=rest[3] if len(rest) > 4 else None,
            )


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A batch that waits for `take`, in place of aiokafka's `FetchResult`."""

    batch: Batch
    state: Any

    def calculate_backoff(self) -> float:
        """Return how long its node's next fetch should wait, in seconds; called by the fetch routine."""
        return 0.0 if self.state.paused else _POLL_GRACE


class BatchFetcher(Fetcher):  # type: ignore[misc]
    """Replaces aiokafka's fetcher in one consumer.

    Args:
        replaced: the consumer's own fetcher, closed; its settings are taken over.
        decoder: turns responses into batches.
        reset: unless it is "earliest", `take` raises `NoOffsetForPartitionError` for a partition without
            a committed offset: with "latest" not every one begins at its end (`start_positions`).
    """

    def __init__(self, replaced: Any, decoder: BatchDecoder, reset: OffsetReset) -> None:
        super().__init__(
            replaced._client,
            replaced._subscriptions,
            fetch_min_bytes=replaced._fetch_min_bytes,
            fetch_max_bytes=replaced._fetch_max_bytes,
            fetch_max_wait_ms=replaced._fetch_max_wait_ms,
            max_partition_fetch_bytes=replaced._max_partition_fetch_bytes,
            client_rack=replaced._client_rack,
        )
        self._retry_backoff = replaced._retry_backoff
        self._look_after, self._next_look = self._retry_backoff, 0.0
        self._isolation_level = replaced._isolation_level
        self._default_reset_strategy = (
            OffsetResetStrategy.EARLIEST if reset == "earliest" else OffsetResetStrategy.NONE
        )
        self._decoder = decoder
        self._whole_wait_ms = replaced._fetch_max_wait_ms
        self._suspended = True
        self._failing: set[TopicPartition] = set()
        self._unreachable: set[int] = set()
        self._start_offsets: dict[TopicPartition, int] = {}
        self._resumed_at = 0.0
        self._gathering_until = 0.0
        self._sessions: dict[int, FetchSession] = {}
        # By node: the last request is sent again while nothing changes.
        self._requests: dict[int, Any] = {}
        self._woken: asyncio.Future[None] | None = None
        self._led: tuple[object, object, frozenset[int]] | None = None
        self._fetch_task.add_done_callback(lambda _: self.wake())

    def suspend(self) -> None:
        """Stop fetching, and let `take` return nothing, until `resume`."""
        self._suspended = True

    @property
    def is_suspended(self) -> bool:
        """Whether `take` returns nothing: a rebalance is under way."""
        return self._suspended

    def resume(self) -> None:
        """Undo `suspend`, for a new assignment."""
        self._suspended = False
        self._resumed_at = self._gathering_until = anyio.current_time()
        # Their first responses tell of every partition, also of what the earlier ones have told.
        self._sessions = {
            node: FetchSession(each.session_id) for node, each in self._sessions.items()
        }
        self._start_offsets.clear()
        self._failing.clear()
        self.wake()

    def wake(self) -> None:
        """Let `wait` return, and the fetch routine look again for partitions to fetch."""
        for waiter in self._fetch_waiters:
            self._notify(waiter)
        self._notify(self._wait_consume_future)

    def let_gather(self, seconds: float) -> None:
        """Begin no fetch for some seconds; those under way go on. `resume` ends that."""
        self._gathering_until = max(self._gathering_until, anyio.current_time() + seconds)

    def start_offset(self, partition: TopicPartition) -> int | None:
        """Return the first offset of the log as of the last response; None while unknown."""
        return self._start_offsets.get(partition)

    def end_offset(self, partition: TopicPartition) -> int | None:
        """Return the offset after the last record that can be read, as last known; None while unknown."""
        state = self._subscriptions.subscription.assignment.state_value(partition)
        end: int | None = state.highwater
        stable = state.lso if self._isolation_level == READ_COMMITTED else None
        return end if stable is None or stable < 0 else stable

    def unreachable(self) -> list[int]:
        """Return the nodes that lead partitions of ours and do not answer."""
        subscription = self._subscriptions.subscription
        if not self._unreachable or subscription is None or subscription.assignment is None:
            return []
        leads = self._client.cluster.leader_for_partition
        return sorted(self._unreachable & set(map(leads, subscription.assignment.tps)))

    def answered_at(self, partition: TopicPartition) -> float | None:
        leader = self._client.cluster.leader_for_partition(partition)
        if self._suspended or leader in (None, -1) or leader in self._unreachable:
            return None
        return self._heard(partition) or self._resumed_at

    def _heard(self, partition: TopicPartition) -> float | None:
        """Return when a node last answered a request for a partition; None: not since the assignment."""
        heard = (session.answered_at(partition) for session in self._sessions.values())
        return max((answered for answered in heard if answered is not None), default=None)

    def at_end_since(self, partition: TopicPartition) -> float | None:
        """Return when the broker last said that nothing is behind the position; None: there is more."""
        state = self._subscriptions.subscription.assignment.state_value(partition)
        known = [each for each in (state.highwater, state.lso) if each is not None and each >= 0]
        is_at_end = state.has_valid_position and known and state.position >= min(known)
        return self._heard(partition) if is_at_end else None

    async def look_up_ends(self, since: float) -> None:
        """Ask for the ends of the partitions that no fetch has told since a time.

        Raises:
            KafkaError: the brokers did not answer.
        """
        subscription, now = self._subscriptions.subscription, anyio.current_time()
        if subscription is None or subscription.assignment is None:
            return
        assignment = subscription.assignment
        late = [
            partition
            for partition in assignment.tps
            if (answered := self.answered_at(partition)) is not None and answered <= since
        ]
        ends = await self.end_offsets(late, _NEVER_MS) if late else {}
        for partition, end in ends.items():
            if assignment.active and (self._heard(partition) or 0.0) <= now:
                state = assignment.state_value(partition)
                state.highwater = state.lso = end

    def take(self, max_bytes: int | None = None) -> list[Batch]:
        """Return the batches of partitions that are not paused, and move their positions.

        The oldest come first. The others stay when `max_bytes` are reached.

        Raises the error of a failed partition, once, before anything is taken.
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
        left = math.inf if max_bytes is None else max_bytes
        for partition, item in list(self._records.items()):
            if left <= 0:
                break
            state = subscription.assignment.state_value(partition)
            if item.state is state and state.paused:
                continue
            del self._records[partition]
            # Another state: of an earlier assignment. Another position: a seek came in between.
            current = item.state is state and state.has_valid_position
            if current and state.position == item.batch.first:
                state.consumed_to(item.batch.last + 1)
                batches.append(item.batch)
                left -= item.batch.nbytes
        self._notify(self._wait_consume_future)
        return batches

    async def wait(self) -> None:
        """Wait until `take` may return or raise something.

        Raises:
            KafkaError: group membership has failed for good.
        """
        if self._fetch_task.done() and not self._closed:
            cause = None if self._fetch_task.cancelled() else self._fetch_task.exception()
            raise ConsumerError(f"the Kafka client has stopped fetching: {cause!r}") from cause
        await self._create_fetch_waiter()

    def _get_actions_per_node(self, assignment: Any) -> Any:
        """Return what to ask of which node now. Looks at all partitions, but only where something changed."""
        woken, self._woken = self._woken, self._wait_consume_future
        if woken is None or woken.done():  # a poll, a pause or a seek has woken the routine
            self._requests.clear()
        if (seconds := self._gathering_until - anyio.current_time()) > 0:
            return [], {}, min(seconds, self._fetcher_timeout), False, []
        free = self._leaders(assignment) - self._in_flight
        if self._suspended or not (free or self._preferred_read_replica):
            return [], {}, self._fetcher_timeout, False, []
        if free and free <= self._requests.keys():
            again = [(node, self._requests[node]) for node in free]
            return again, {}, self._fetcher_timeout, False, []
        partial = bool(self._records) or any(
            assignment.state_value(partition).paused for partition in assignment.tps
        )
        self._fetch_max_wait_ms = (
            min(_PARTIAL_WAIT_MS, self._whole_wait_ms) if partial else self._whole_wait_ms
        )
        found = super()._get_actions_per_node(assignment)
        requests, resets, timeout, lacks_leader, resumed = found
        if not (partial or resets or lacks_leader or self._preferred_read_replica):
            self._requests.update(requests)
        if lacks_leader:
            lacks_leader, timeout = self._may_look(timeout)
        else:
            self._look_after = self._retry_backoff
        return requests, resets, timeout, lacks_leader, resumed

    def _may_look(self, timeout: float) -> tuple[bool, float]:
        """Return whether to look for leaders now, and how long to wait: longer each time that none is found.

        aiokafka looks again as soon as it has the answer: for a deleted topic, hundreds of times a second.
        """
        now = anyio.current_time()
        if now < self._next_look:
            return False, min(timeout, self._next_look - now)
        self._next_look = now + self._look_after
        self._look_after = min(2 * self._look_after, _LONGEST_LOOK)
        return True, min(timeout, self._next_look - now)

    def _leaders(self, assignment: Any) -> frozenset[int]:
        """Return the nodes that lead the partitions."""
        partitions = self._client.cluster._partitions  # another object after each update
        if self._led is None or self._led[0] is not assignment or self._led[1] is not partitions:
            self._requests.clear()
            nodes = frozenset(map(self._client.cluster.leader_for_partition, assignment.tps))
            self._led = assignment, partitions, nodes
        return self._led[2]

    async def _proc_fetch_request(self, assignment: Any, node_id: int, request: Any) -> bool:
        """Send one fetch and keep its response; return whether `take` has news."""
        session = self._sessions.setdefault(node_id, FetchSession())
        try:
            response = await self._client.send(node_id, session.ask(request))
            self._unreachable.discard(node_id)
            is_accepted = session.accept(response, anyio.current_time())
            if not assignment.active:
                return False
            arrived, failed = self._receive(assignment, session.positions, response)
            if (failed or not is_accepted) and not arrived:
                await asyncio.sleep(self._retry_backoff)
        except aiokafka.errors.KafkaError as error:
            session.lose()
            self._invalidate_preferred_read_replica_for_node(node_id, request)
            if node_id not in self._unreachable:  # log once, not at every attempt
                self._unreachable.add(node_id)
                _log.warning("fetch failed, trying again", node=node_id, reason=str(error))
            try:
                await asyncio.sleep(self._retry_backoff)
            except asyncio.CancelledError:
                return False
        except asyncio.CancelledError:
            session.lose()
            # The routine that started this task cancels it only to forget it, and awaits it bare.
            return False
        else:
            return arrived
        return False

    def _receive(
        self, assignment: Any, asked: Mapping[TopicPartition, int], response: Any
    ) -> tuple[bool, bool]:
        """Keep the batches of a response; return whether `take` has news, and whether any part failed."""
        arrived, failed = False, False
        states: list[Any] = []
        parts: list[FetchedPart] = []
        for fetched in unpack_response(response):
            self._requests.clear()
            partition = TopicPartition(fetched.topic, fetched.partition)
            state = assignment.state_value(partition)
            first = asked[partition]
            if fetched.error == 0:
                self._note_offsets(partition, state, fetched)
            if not state.has_valid_position or state.position != first:
                continue  # a seek came in between
            if fetched.error != 0:
                error = aiokafka.errors.for_code(fetched.error)
                arrived |= self._fail(partition, first, error)
                self._preferred_read_replica.pop(partition, None)  # ask the leader
                failed = True
                continue
            if self._client_rack and fetched.preferred_replica is not None:
                self._update_preferred_read_replica(partition, fetched.preferred_replica)
            self._failing.discard(partition)
            states.append(state)
            parts.append(FetchedPart(*partition, fetched.data, first, fetched.aborted))
        for part, state, batch in zip(parts, states, self._decoder.batches(parts), strict=True):
            partition = TopicPartition(part.topic, part.partition)
            if isinstance(batch, CorruptRecords):
                self._set_error(partition, batch)
                arrived = True
            elif batch is not None and not (state.paused and self._kept() >= self._fetch_max_bytes):
                self._records[partition] = _Fetched(batch, state)
                arrived = True
        return arrived, failed

    def _note_offsets(
        self, partition: TopicPartition, state: Any, fetched: FetchedPartition
    ) -> None:
        """Note where the log begins and ends. A node tells it once, so also after a seek."""
        state.highwater = fetched.high_watermark
        if fetched.last_stable is not None:
            state.lso = fetched.last_stable
        if fetched.log_start is not None:
            self._start_offsets[partition] = fetched.log_start

    def _kept(self) -> int:
        """Return the bytes that wait for `take`."""
        return sum(i.batch.nbytes for i in self._records.values() if isinstance(i, _Fetched))

    def _fail(self, partition: TopicPartition, offset: int, error: Any) -> bool:
        """Handle a partition's error; return whether `take` should raise it."""
        errors = aiokafka.errors
        if error is errors.OffsetOutOfRangeError:
            self._set_error(partition, error({partition: offset}))
            return True
        if error is errors.TopicAuthorizationFailedError:
            self._set_error(partition, error(partition.topic))
            return True
        self._client.force_metadata_update()
        if partition not in self._failing:
            self._failing.add(partition)
            _log.warning(
                "fetch refused, trying again", partition=str(partition), reason=error.__name__
            )
        return False
