"""The transaction coordinator: all transactional ids of this broker and their transactions (KIP-98)."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import anyio
import structlog

from broker.health.progress import unwatched
from broker.log.errors import LogError
from broker.transactions import lifecycle
from broker.transactions.markers import OFFSETS_PARTITION, MarkerWriter
from broker.transactions.types import (
    Transaction,
    TransactionError,
    TransactionSettings,
    TransactionState,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from types import TracebackType

    from anyio.abc import TaskGroup

    from broker.appends import Appends
    from broker.groups.coordinator import GroupCoordinator
    from broker.producers.identity import ProducerIdentity
    from broker.producers.markers import Marker
    from broker.producers.states import ProducerError
    from broker.topics.topics import Topics
    from broker.transactions.store import TransactionStore
    from broker.transactions.types import TopicPartition

__all__ = ["TransactionCoordinator"]

T = TypeVar("T")

_EXPIRATION_INTERVAL_MS: Final = 60_000
_MAX_ID_BYTES: Final = 32_767  # the longest string of the protocol's older versions

logger = structlog.get_logger(__name__)


class TransactionCoordinator:
    """Answers transactional requests while it is entered; an async context manager.

    Every change is stored before it is acknowledged. A decision to commit or abort holds from when it
    is stored: entering writes the markers that a kill has left unwritten. The store belongs to the
    caller, who closes it afterwards.

    What the disk refuses is answered COORDINATOR_NOT_AVAILABLE: the client tries again.
    """

    def __init__(
        self,
        store: TransactionStore,
        *,
        topics: Topics,
        appends: Appends,
        groups: GroupCoordinator,
        new_producer_id: Callable[[], int],
        settings: TransactionSettings | None = None,
        now: Callable[[], float] = time.time,
        beat: Callable[[], None] = unwatched,
    ) -> None:
        """`new_producer_id` may raise LogError or OSError; `now` is seconds since 1970.

        `beat` is called as long as transactions are looked after.
        """
        self._store = store
        self._settings = settings or TransactionSettings()
        self._new_producer_id = new_producer_id
        self._now = now
        self._beat = beat
        self._markers = MarkerWriter(topics, appends, groups, now_ms=self.now_ms)
        self._completing: dict[str, asyncio.Task[bool]] = {}
        self._changes: set[asyncio.Task[object]] = set()
        self._tasks: TaskGroup | None = None
        self._next_expiration_ms = 0

    async def __aenter__(self) -> Self:
        await self._resume()
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._check_now_and_then)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(None, None, None)
        with anyio.CancelScope(shield=True):
            while running := [*self._changes, *self._completing.values()]:
                await asyncio.wait(running)

    # -- requests ------------------------------------------------------------------------------

    async def initialise(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None = None
    ) -> ProducerIdentity | TransactionError:
        """Hand a transactional id to a new producer (see `lifecycle.initialise`)."""
        if not 0 < len(transactional_id.encode()) <= _MAX_ID_BYTES:
            return TransactionError.INVALID_REQUEST
        if not 0 < timeout_ms <= self._settings.max_timeout_ms:
            return TransactionError.INVALID_TRANSACTION_TIMEOUT
        return await self._unbroken(self._initialise(transactional_id, timeout_ms, expected))

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Iterable[TopicPartition],
    ) -> TransactionError | None:
        """Make partitions part of the producer's transaction, which begins with the first ones."""
        if not transactional_id:
            return TransactionError.INVALID_REQUEST
        return await self._unbroken(self._add(transactional_id, producer, frozenset(partitions)))

    async def add_offsets(
        self, transactional_id: str, producer: ProducerIdentity
    ) -> TransactionError | None:
        """Make offsets of a group part of the producer's transaction."""
        return await self.add_partitions(transactional_id, producer, [OFFSETS_PARTITION])

    async def end(
        self, transactional_id: str, producer: ProducerIdentity, *, commit: bool
    ) -> TransactionError | None:
        """Commit or abort.

        None once it is decided for good. What was committed can usually be read then; if a disk
        fails, it will be as soon as the markers could be written.
        """
        if not transactional_id:
            return TransactionError.INVALID_REQUEST
        return await self._unbroken(self._end(transactional_id, producer, commit=commit))

    def verify(
        self, transactional_id: str, producer: ProducerIdentity, partition: TopicPartition
    ) -> TransactionError | None:
        """Say whether the producer may write to the partition now (see `lifecycle.verify`)."""
        return lifecycle.verify(self._store.get(transactional_id), producer, partition)

    def verify_offsets(
        self, transactional_id: str, producer: ProducerIdentity
    ) -> TransactionError | None:
        """The same for offsets of groups."""
        return self.verify(transactional_id, producer, OFFSETS_PARTITION)

    # -- administration ------------------------------------------------------------------------

    async def end_in(
        self, partitions: Iterable[TopicPartition], marker: Marker, producer: ProducerIdentity
    ) -> dict[TopicPartition, ProducerError | LogError | None]:
        """End a transaction in some partitions, whether it is known or not (KIP-664).

        Returns how it went for each partition that there is: None, a producer or a coordinator that is
        not the newest one, or the disk.
        """
        return await self._unbroken(self._markers.end_in(partitions, marker, producer))

    def transactions(self) -> list[Transaction]:
        """Every transactional id that is known."""
        return list(self._store)

    def get(self, transactional_id: str) -> Transaction | None:
        """One of them."""
        return self._store.get(transactional_id)

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as the coordinator sees them."""
        return int(self._now() * 1000)

    async def check(self) -> None:
        """Abort what has timed out, go on with what failed, and forget what was not used for long.

        Raises LogError: a change could not be stored.
        """
        completing = []
        now_ms = self.now_ms()
        for transaction in self._store.active:
            if lifecycle.is_timed_out(transaction, now_ms):
                logger.warning(
                    "a transaction took longer than its timeout and is aborted",
                    transactional_id=transaction.transactional_id,
                    producer_id=transaction.producer.producer_id,
                    timeout_ms=transaction.timeout_ms,
                )
                fenced = lifecycle.fence(transaction, now_ms)
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
            transaction = lifecycle.initialise(
                self._store.get(transactional_id),
                transactional_id,
                timeout_ms=timeout_ms,
                expected=expected,
                now_ms=self.now_ms(),
                new_producer_id=self._new_producer_id,
            )
            if isinstance(transaction, TransactionError):
                return transaction
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
        transaction = lifecycle.add_partitions(current, producer, partitions, self.now_ms())
        if isinstance(transaction, TransactionError):
            return transaction
        try:
            if transaction is not current:
                self._store.put(transaction)
            await self._store.until_durable()
        except LogError as error:
            return _refused(transactional_id, error)
        return None

    async def _end(
        self, transactional_id: str, producer: ProducerIdentity, *, commit: bool
    ) -> TransactionError | None:
        current = self._store.get(transactional_id)
        transaction = lifecycle.end(current, producer, commit=commit, now_ms=self.now_ms())
        if isinstance(transaction, TransactionError):
            return transaction
        if transaction is current:
            return None
        try:
            self._store.put(transaction)
        except LogError as error:
            return _refused(transactional_id, error)
        decided = await self._complete(transaction)
        return None if decided else TransactionError.COORDINATOR_NOT_AVAILABLE

    def _complete(self, prepared: Transaction, *, again: bool = False) -> asyncio.Task[bool]:
        """Have the markers written; to be called at once when the decision has been stored.

        One task at a time for each transaction: a marker that came later could end the next one.
        """
        running = self._completing.get(prepared.transactional_id)
        if running is None:
            running = asyncio.create_task(self._write_markers(prepared, again=again))
            self._completing[prepared.transactional_id] = running
        return running

    async def _write_markers(self, prepared: Transaction, *, again: bool) -> bool:
        """Returns whether the decision holds; what fails is logged, and `check` tries it again."""
        decided = False
        try:
            await self._store.until_durable()
            decided = True
            if await self._markers.write(prepared, again=again):
                self._store.put(lifecycle.complete(prepared, self.now_ms()))
        except LogError as error:
            logger.error(
                "a transaction could not be completed yet",
                transactional_id=prepared.transactional_id,
                error=str(error),
            )
        finally:
            del self._completing[prepared.transactional_id]
        return decided

    def _expire(self, now_ms: int) -> None:
        for transaction in self._store:
            if lifecycle.is_expired(transaction, now_ms, self._settings.id_expiration_ms):
                self._store.remove(transaction.transactional_id)

    async def _resume(self) -> None:
        """Go on where a kill has interrupted the last broker."""
        for transaction in self._store.active:
            if transaction.state.is_prepared:
                await self._complete(transaction, again=True)
        known = {each.producer.producer_id: each.partitions for each in self._store.active}
        aborted = await self._markers.abort_unknown(known)
        if aborted:
            logger.warning(
                "open transactions that their coordinator does not know of were aborted;"
                " a power loss can cause this, see --fsync",
                transactions=aborted,
            )

    async def _check_now_and_then(self) -> None:
        failing = False
        while True:
            await anyio.sleep(self._settings.check_interval)
            self._beat()
            try:
                await self.check()
                await self._store.maintain()
                failing = False
            except LogError as error:
                if not failing:
                    logger.error("transactions could not be looked after", error=str(error))
                failing = True

    async def _unbroken(self, change: Coroutine[Any, Any, T]) -> T:
        """Run a change to its end, also when the client that asked for it is gone."""
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)


def _refused(transactional_id: str, error: Exception) -> TransactionError:
    logger.error(
        "a transaction could not be stored", transactional_id=transactional_id, error=str(error)
    )
    return TransactionError.COORDINATOR_NOT_AVAILABLE
