"""All logs of a data directory: opened in order, and closed before the directory is marked clean."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio
import structlog
from anyio import to_thread

from ..coordinators.groups.group_settings import GroupOverrides
from ..coordinators.offset_store import OffsetStore
from ..coordinators.state_log import StateLog
from ..coordinators.transaction_store import TransactionStore
from ..errors import BrokerError
from ..log.durable_files import make_directory
from ..log.recovery import report_recovery
from ..log.results import LogError
from ..topics.topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, internal_topic
from ..topics.topic_config import default_log_config
from ..topics.topics import Topics
from .data_directory import ProducerIds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from ..settings import BrokerSettings
    from .data_directory import DataDirectory


logger = structlog.get_logger(__name__)

Store = TypeVar("Store", OffsetStore, TransactionStore)


class BrokerStorage:
    """The topics, the coordinators' logs and the producer ids of a broker.

    Calls: `open`, then `close`, also if `open` failed.
    """

    def __init__(self, data: DataDirectory, settings: BrokerSettings) -> None:
        self.topics = Topics(data.path, settings)
        self.offsets: OffsetStore
        self.transactions: TransactionStore
        self.producer_ids: ProducerIds
        self.group_settings: GroupOverrides
        self._settings = settings
        self._data = data
        self._config = default_log_config(settings)
        self._stores: list[OffsetStore | TransactionStore] = []
        self._complete = False

    async def open(self) -> None:
        """Open and recover everything. Raises BrokerError if something cannot be read."""
        await self.topics.open(clean=self._data.was_clean)
        self.offsets = await self._open(OffsetStore, "offsets", "committed offsets")
        self.transactions = await self._open(TransactionStore, "transactions", "transactions")
        self._complete = True  # all logs are open
        logs = {OFFSETS_TOPIC: self.offsets.log, TRANSACTIONS_TOPIC: self.transactions.log}
        for topic, log in logs.items():
            self.topics.show_internal(internal_topic(topic, log, self._config))
        self.group_settings = self._group_settings()
        path = self._data.path / "producer-ids"
        try:
            self.producer_ids = ProducerIds(path, used=self._used_producer_ids())
        except (LogError, OSError) as error:
            raise BrokerError(f"the producer ids in {path} cannot be read: {error}") from error

    async def close(self) -> None:
        """Write, sync and close all logs, even if the broker's task is being cancelled."""
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

    def _group_settings(self) -> GroupOverrides:
        path = self._data.path / "group-settings"
        try:
            return GroupOverrides(path, self._settings)
        except (OSError, ValueError) as error:
            raise BrokerError(
                f"the settings of groups in {path} cannot be read: {error}; restore the file, or delete it"
                " to go on without them"
            ) from error

    def _used_producer_ids(self) -> Iterator[int]:
        for partition in self.topics.partitions:
            yield from partition.log.producers.ids
        for transaction in self.transactions:
            yield transaction.producer.producer_id
            yield transaction.producer_afterwards.producer_id

    async def _open(self, kind: type[Store], name: str, what: str) -> Store:
        directory = self._data.path / name
        # The first start makes this directory, before any topic.
        if not directory.exists() and self.topics.partitions:
            raise BrokerError(
                f"the {what} in {directory} are missing; restore the directory, or make an empty one to"
                " go on without them"
            )
        try:
            if not directory.exists():
                make_directory(directory)
            store: Store = await to_thread.run_sync(self._load, kind, directory)
        except BrokerError:
            raise
        except Exception as error:
            # Whatever is in the files: the user gets a reason.
            reason = error if isinstance(error, LogError | OSError) else repr(error)
            raise BrokerError(f"the {what} in {directory} cannot be read: {reason}") from error
        self._stores.append(store)
        report_recovery(store.log.log, directory=str(directory))
        return store

    def _load(self, kind: type[Store], directory: Path) -> Store:
        return kind(StateLog(directory, self._config, clean=self._data.was_clean))
