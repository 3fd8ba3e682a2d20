"""The transaction coordinator: all transactional ids of this broker and their transactions (KIP-98)."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import anyio
import structlog

from ..log.producers import ProducerIdentity
from ..log.results import LogError
from ..supervision import Supervision
from . import transaction_state
from .transaction_markers import OFFSETS_PARTITION, MarkerWriter
from .transaction_state import TransactionalId, TransactionError, TransactionState
from .transaction_store import kept_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from contextlib import AbstractContextManager

    from anyio.abc import TaskGroup

    from ..settings import BrokerSettings
    from ..storage.data_directory import ProducerIds
    from ..storage.group_commit import GroupCommit
    from ..topics.topic import TopicPartition
    from ..topics.topics import Topics
    from .offset_store import OffsetStore
    from .transaction_store import TransactionStore

T = TypeVar("T")

_CHECK_INTERVAL: Final = (
    1.0  # seconds between two checks for timed-out transactions and expired ids
)
_EXPIRATION_INTERVAL_MS: Final = 60_000
_MAX_ID_BYTES: Final = 32_767  # the longest string of the protocol's older versions
_MAINTENANCE: Final = "the maintenance of transactions"

logger = structlog.get_logger(__name__)


class TransactionCoordinator:
    """Answers transactional requests while it is entered; an async context manager.

    Every change is stored before it is acknowledged. A stored decision to commit or abort is final:
    entering writes markers that are missing after a kill. The caller owns the store and closes it.

    When the disk fails, the answer is COORDINATOR_NOT_AVAILABLE, and the client retries.
    """

    def __init__(
        self,
        store: TransactionStore,
        *,
        topics: Topics,
        group_commit: GroupCommit,
        offsets: OffsetStore,
        producer_ids: ProducerIds,
        settings: BrokerSettings,
        check_interval: float = _CHECK_INTERVAL,
        now: Callable[[], float] = time.time,
        supervisor: Supervision | None = None,
    ) -> None:
        """`now` is seconds since 1970."""
        self._store = store
        self._max_timeout_ms = round(settings.transaction_max_timeout * 1000)
        self._id_expiration_ms = round(settings.transactional_id_expiration_seconds * 1000)
        self._max_bytes = settings.transaction_memory_bytes
        self._check_interval = check_interval
        self._producer_ids = producer_ids
        self._now = now
        self._supervisor = supervisor or Supervision()
        self._markers = MarkerWriter(topics, group_commit, offsets, now_ms=self.now_ms)
        self._completing: dict[str, asyncio.Task[bool]] = {}
        self._changes: set[asyncio.Task[object]] = set()
        self._tasks: TaskGroup | None = None
        self._next_expiration_ms = 0

    async def __aenter__(self) -> Self:
        await self._resume()
        self._tasks = await anyio.create_task_group().__aenter__()
        repeat, every = self._supervisor.repeat, self._check_interval
        self._tasks.start_soon(partial(repeat, _MAINTENANCE, self._maintain, every=every))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(None, None, None)
        with anyio.CancelScope(shield=True):
            while running := [*self._changes, *self._completing.values()]:
                await asyncio.wait(running)

    # -- requests ------------------------------------------------------------------------------

    async def new_producer(self) -> ProducerIdentity:
        """Return the identity of a producer without a transactional id. Raises LogError, OSError."""
        await self._producer_ids.reserve()
        return ProducerIdentity(self._producer_ids.next(), 0)

    async def initialise(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None = None
    ) -> ProducerIdentity | TransactionError:
        """Give a transactional id to a new producer (see `transaction_state.initialise`)."""
        if not 0 < len(transactional_id.encode()) <= _MAX_ID_BYTES:
            return TransactionError.INVALID_REQUEST
        if not 0 < timeout_ms <= self._max_timeout_ms:
            return TransactionError.INVALID_TRANSACTION_TIMEOUT
        return await self._to_completion(self._initialise(transactional_id, timeout_ms, expected))

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Iterable[TopicPartition],
    ) -> TransactionError | None:
        """Add partitions to the producer's transaction; the first ones begin it."""
        if not transactional_id:
            return TransactionError.INVALID_REQUEST
        return await self._to_completion(
            self._add(transactional_id, producer, frozenset(partitions))
        )

    async def add_offsets(
        self, transactional_id: str, producer: ProducerIdentity
    ) -> TransactionError | None:
        """Add committed offsets to the producer's transaction."""
        return await self.add_partitions(transactional_id, producer, [OFFSETS_PARTITION])

    async def end(
        self, transactional_id: str, producer: ProducerIdentity, *, commit: bool
    ) -> TransactionError | None:
        """Commit or abort the transaction.

        Returns None once the decision is final. Committed records are readable then, or, after a disk
        failure, once the markers are written.
        """
        if not transactional_id:
            return TransactionError.INVALID_REQUEST
        change = partial(transaction_state.end, producer=producer, commit=commit)
        ended = await self._to_completion(self._end(transactional_id, change))
        return ended if isinstance(ended, TransactionError) else None

    async def end_and_raise_epoch(
        self, transactional_id: str, producer: ProducerIdentity, *, commit: bool
    ) -> ProducerIdentity | TransactionError:
        """Commit or abort the transaction as `end`; return the producer's identity afterwards.

        For clients of transaction version 2 (see `transaction_state.end_and_raise_epoch`).
        """
        if not transactional_id:
            return TransactionError.INVALID_REQUEST
        change = partial(
            transaction_state.end_and_raise_epoch,
            producer=producer,
            commit=commit,
            new_producer_id=self._producer_ids.next,
        )
        ended = await self._to_completion(self._end(transactional_id, change))
        return ended if isinstance(ended, TransactionError) else ended.producer_afterwards

    def verify(
        self, transactional_id: str, producer: ProducerIdentity, partition: TopicPartition
    ) -> TransactionError | None:
        """Check whether the producer may write to the partition now (see `transaction_state.verify`)."""
        return transaction_state.verify(self._store.get(transactional_id), producer, partition)

    def verify_offsets(
        self, transactional_id: str, producer: ProducerIdentity
    ) -> TransactionError | None:
        """Check whether the producer may commit offsets of groups now."""
        return self.verify(transactional_id, producer, OFFSETS_PARTITION)

    # -- administration ------------------------------------------------------------------------

    def transactions(self) -> list[TransactionalId]:
        """Return the state of every known transactional id."""
        return list(self._store)

    def get(self, transactional_id: str) -> TransactionalId | None:
        """Return the state of a transactional id, if it is known."""
        return self._store.get(transactional_id)

    def now_ms(self) -> int:
        """Return the coordinator's time in milliseconds since the epoch."""
        return int(self._now() * 1000)

    async def check(self) -> None:
        """Abort timed-out transactions, retry unwritten markers, and remove expired ids.

        Raises LogError if an expired id cannot be removed.
        """
        completing = []
        now_ms = self.now_ms()
        for transaction in self._store.active:
            if not self._may_try(transaction):
                continue
            if transaction_state.is_timed_out(transaction, now_ms):
                logger.warning(
                    "a transaction exceeded its timeout and is aborted",
                    transactional_id=transaction.transactional_id,
                    producer_id=transaction.producer.producer_id,
                    timeout_ms=transaction.timeout_ms,
                )
                with self._attempt("cannot abort a transaction yet", transaction):
                    fenced = transaction_state.fence(transaction, now_ms)
                    self._store.put(fenced)
                    completing.append(self._complete(fenced))
            elif transaction.state.is_prepared:
                completing.append(self._complete(transaction, again=True))
        if completing:
            await asyncio.wait(completing)
        if now_ms >= self._next_expiration_ms:
            self._next_expiration_ms = now_ms + _EXPIRATION_INTERVAL_MS
            self._expire(now_ms)

    # -- inside --------------------------------------------------------------------------------

    async def _initialise(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity | TransactionError:
        try:
            await self._producer_ids.reserve()
            transaction = transaction_state.initialise(
                self._store.get(transactional_id),
                transactional_id,
                timeout_ms=timeout_ms,
                expected=expected,
                now_ms=self.now_ms(),
                new_producer_id=self._producer_ids.next,
            )
            if isinstance(transaction, TransactionError):
                return transaction
            if not self._has_room(transaction):
                return TransactionError.POLICY_VIOLATION
            self._store.put(transaction)
            if transaction.state is TransactionState.PREPARE_ABORT:
                self._complete(transaction)
                return TransactionError.CONCURRENT_TRANSACTIONS
            await self._store.until_durable()
        except (LogError, OSError) as error:
            return _refused(transactional_id, error)
        return transaction.producer

    async def _add(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: frozenset[TopicPartition],
    ) -> TransactionError | None:
        current = self._store.get(transactional_id)
        transaction = transaction_state.add_partitions(current, producer, partitions, self.now_ms())
        if isinstance(transaction, TransactionError):
            return transaction
        if not self._has_room(transaction):
            return TransactionError.POLICY_VIOLATION
        try:
            if transaction is not current:
                self._store.put(transaction)
            await self._store.until_durable()
        except LogError as error:
            return _refused(transactional_id, error)
        return None

    async def _end(
        self, transactional_id: str, change: Callable[..., TransactionalId | TransactionError]
    ) -> TransactionalId | TransactionError:
        """Return the transaction that is decided; `change` prepares its end."""
        try:
            await self._producer_ids.reserve()
            current = self._store.get(transactional_id)
            transaction = change(current, now_ms=self.now_ms())
            if isinstance(transaction, TransactionError) or transaction is current:
                return transaction
            self._store.put(transaction)
        except (LogError, OSError) as error:
            return _refused(transactional_id, error)
        decided = await self._complete(transaction)
        return transaction if decided else TransactionError.COORDINATOR_NOT_AVAILABLE

    def _has_room(self, transaction: TransactionalId) -> bool:
        """Whether the budget allows a transactional id to become this; less than before always fits."""
        before = self._store.get(transaction.transactional_id)
        more = kept_bytes(transaction) - (0 if before is None else kept_bytes(before))
        return more <= 0 or self._store.kept_bytes + more <= self._max_bytes

    def _complete(self, prepared: TransactionalId, *, again: bool = False) -> asyncio.Task[bool]:
        """Start writing the markers; call it right after the decision is stored.

        Runs one task per transaction: a late marker of a second one could end the next transaction.
        """
        running = self._completing.get(prepared.transactional_id)
        if running is None:
            running = asyncio.create_task(self._write_markers(prepared, again=again))
            self._completing[prepared.transactional_id] = running
        return running

    async def _write_markers(self, prepared: TransactionalId, *, again: bool) -> bool:
        """Return whether the decision is final; log failures, which `check` retries."""
        decided = False
        try:
            with self._attempt("cannot complete a transaction yet", prepared):
                await self._store.until_durable()
                decided = True
                await self._markers.write(prepared, again=again)
                self._store.put(transaction_state.complete(prepared, self.now_ms()))
        finally:
            del self._completing[prepared.transactional_id]
        return decided

    def _may_try(self, transaction: TransactionalId) -> bool:
        return self._supervisor.may_try(_MAINTENANCE, transactional_id=transaction.transactional_id)

    def _attempt(self, event: str, transaction: TransactionalId) -> AbstractContextManager[None]:
        return self._supervisor.attempt(
            _MAINTENANCE, event, transactional_id=transaction.transactional_id
        )

    def _expire(self, now_ms: int) -> None:
        for transaction in self._store:
            if transaction_state.is_expired(transaction, now_ms, self._id_expiration_ms):
                self._store.remove(transaction.transactional_id)

    async def _resume(self) -> None:
        """Complete the transactions that a kill has interrupted."""
        for transaction in self._store.active:
            if transaction.state.is_prepared:
                await self._complete(transaction, again=True)
        owners = {each.last.producer_id: each for each in self._store if each.raised_epoch}
        owners |= {each.producer.producer_id: each for each in self._store}
        ended = await self._markers.end_hanging(
            lambda producer, partition: transaction_state.left_open(
                owners.get(producer.producer_id), producer, partition
            )
        )
        if ended:
            logger.warning(
                "ended open transactions that the coordinator does not know, or has ended;"
                " a power loss can cause this, see --fsync",
                committed=ended[True],
                aborted=ended[False],
            )

    async def _maintain(self) -> None:
        await self.check()
        await self._store.maintain()

    async def _to_completion(self, change: Coroutine[Any, Any, T]) -> T:
        """Run a change to its end, even if its client disconnects."""
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)


def _refused(transactional_id: str, error: Exception) -> TransactionError:
    logger.error("cannot store a transaction", transactional_id=transactional_id, error=str(error))
    return TransactionError.COORDINATOR_NOT_AVAILABLE
