"""All logs of a data directory: opened in order, and closed before it may be called clean."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio
import structlog
from anyio import to_thread

from broker.errors import BrokerError
from broker.groups.offsets import OFFSETS_TOPIC, OffsetStore
from broker.log.errors import LogError
from broker.log.files import make_directory
from broker.producer_ids import ProducerIds
from broker.recovery import report_recovery
from broker.state_log import StateLog
from broker.topics.config import default_log_config
from broker.topics.internal import internal_topic
from broker.topics.topics import Topics
from broker.transactions.store import TRANSACTIONS_TOPIC, TransactionStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from pathlib import Path

    from broker.datadir import DataDirectory
    from broker.log.partition import PartitionLog
    from broker.settings import BrokerSettings

__all__ = ["Storage"]

logger = structlog.get_logger(__name__)

Store = TypeVar("Store", OffsetStore, TransactionStore)


class Storage:
    """What a broker keeps on disk; `close` it also if `open` failed."""

    def __init__(self, data: DataDirectory, settings: BrokerSettings) -> None:
        self.topics = Topics(data.path, settings)
        self.offsets: OffsetStore
        self.transactions: TransactionStore
        self.producer_ids: ProducerIds
        self._data = data
        self._config = default_log_config(settings)
        self._stores: list[OffsetStore | TransactionStore] = []
        self._complete = False

    @property
    def internal_logs(self) -> Mapping[str, PartitionLog]:
        """The logs of the internal topics, by the topic's name."""
        return {name: log.log for name, log in self._state_logs.items()}

    @property
    def _state_logs(self) -> Mapping[str, StateLog]:
        return {OFFSETS_TOPIC: self.offsets.log, TRANSACTIONS_TOPIC: self.transactions.log}

    async def open(self) -> None:
        """Raises BrokerError when something cannot be read."""
        await self.topics.open(clean=self._data.was_clean)
        self.offsets = await self._open(OffsetStore, "offsets", "committed offsets")
        self.transactions = await self._open(TransactionStore, "transactions", "transactions")
        self._complete = True  # all logs are open
        for topic, log in self._state_logs.items():
            self.topics.show_internal(internal_topic(topic, log, self._config))
        path = self._data.path / "producer-ids"
        try:
            self.producer_ids = ProducerIds(path, used=self._used_producer_ids())
        except (LogError, OSError) as error:
            raise BrokerError(f"the producer ids in {path} cannot be read: {error}") from error

    async def close(self) -> None:
        """Write, sync and close all that is open, also when the broker's task is being cancelled."""
        with anyio.CancelScope(shield=True):
            failures = []
            closings: list[Callable[[], Awaitable[None]]] = [
                partial(to_thread.run_sync, store.close) for store in reversed(self._stores)
            ]
            for close in (*closings, self.topics.close):
                try:
                    await close()
                except (LogError, OSError) as error:
                    failures.append(str(error))
            try:
                self._data.close(clean=self._complete and not failures)
            except OSError as error:
                failures.append(str(error))
            if failures:
                logger.error(
                    "not everything could be written; the logs are checked at the next start",
                    errors=failures,
                )

    def _used_producer_ids(self) -> Iterator[int]:
        for partition in self.topics.partitions:
            yield from (each.producer_id for each in partition.log.producers.describe())
        yield from (each.producer.producer_id for each in self.transactions)

    async def _open(self, kind: type[Store], name: str, what: str) -> Store:
        directory = self._data.path / name
        if not directory.exists() and self.topics.partitions:  # it was made before them
            raise BrokerError(
                f"the {what} in {directory} are missing: restore the directory, or make an empty one to"
                " go on without them"
            )
        try:
            if not directory.exists():
                make_directory(directory)
            store: Store = await to_thread.run_sync(self._load, kind, directory)
        except (LogError, OSError) as error:
            raise BrokerError(f"the {what} in {directory} cannot be read: {error}") from error
        self._stores.append(store)
        report_recovery(store.log.log, directory=str(directory))
        return store

    def _load(self, kind: type[Store], directory: Path) -> Store:
        return kind(StateLog.open(directory, self._config, clean=self._data.was_clean))
