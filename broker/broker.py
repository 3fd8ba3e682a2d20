"""The broker: everything it is made of, started and stopped in the right order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Self

import anyio
import structlog
from anyio import to_thread

from broker.api import Services
from broker.appends import SYNC_THREADS, Appends
from broker.buffers import BufferPool
from broker.compactor import compact_logs
from broker.datadir import DataDirectory
from broker.dispatch import SERVED, Dispatcher, advertised_versions
from broker.errors import BrokerError
from broker.groups.coordinator import GroupCoordinator
from broker.groups.offsets import OffsetStore
from broker.log.errors import LogError
from broker.maintenance import apply_retention, sync_due_logs
from broker.membership import GroupSettings
from broker.producers.ids import ProducerIds
from broker.security.acls import Authorizer
from broker.security.quotas import Quotas, Rate
from broker.security.tls import server_context
from broker.security.users import Users
from broker.server.server import Server, bind
from broker.telemetry.metrics import Metrics
from broker.telemetry.requests import RequestMeters
from broker.topics.config import default_log_config
from broker.topics.topics import Topics
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.store import TransactionStore
from broker.transactions.types import TransactionSettings

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from anyio.abc import TaskGroup

    from broker.settings import BrokerSettings

__all__ = ["Broker"]

logger = structlog.get_logger(__name__)

_ANY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  not for binding


class Broker:
    """One node that speaks Kafka's protocol, while it is entered.

        async with Broker(BrokerSettings(data_dir=path, port=0)) as broker:
            print(broker.bootstrap_servers)

    It runs in the event loop of whoever enters it. On leaving, it answers the requests that it has
    begun to handle, then writes, syncs and closes its logs.

    Entering raises BrokerError when the port or the data directory is in use, or when the data, the
    certificate, the users or the access rules cannot be read.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._port = 0
        self._topics: Topics | None = None
        self._stack = AsyncExitStack()

    @property
    def bootstrap_servers(self) -> str:
        """`HOST:PORT`, as clients on this machine, or where it is advertised, name it."""
        host = self.settings.advertised_host or self.settings.host
        host = _ANY_ADDRESS.get(host, host)
        port = self.settings.advertised_port or self._port
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def topics(self) -> Topics:
        """The topics of a broker that is running."""
        if self._topics is None:
            raise RuntimeError("the broker is not running: use it with `async with`")
        return self._topics

    async def __aenter__(self) -> Self:
        settings = self.settings
        async with AsyncExitStack() as stack:
            tls = _tls_context(settings)
            users = Users(settings.users_file) if settings.users_file else None
            authorizer = Authorizer(settings.acl_file) if settings.acl_file else None
            listener = bind(settings.host, settings.port)
            stack.callback(listener.close)
            self._port = listener.getsockname()[1]
            executor = stack.enter_context(ThreadPoolExecutor(SYNC_THREADS, "fsync"))

            data = DataDirectory(settings.data_dir)
            storage = _Storage(data)
            stack.push_async_callback(storage.close)
            topics = storage.topics = Topics(data.path, settings)
            await topics.open(clean=data.was_clean)
            store = storage.offsets = await _open_offsets(data, settings)
            transaction_store = storage.transactions = await _open_transactions(data, settings)
            producer_ids = _open_producer_ids(data)

            appends = Appends(sync=settings.fsync == "always", executor=executor)
            stack.push_async_callback(_shielded, appends.drain)
            tasks = await anyio.create_task_group().__aenter__()
            stack.push_async_callback(_cancel, tasks)

            groups = GroupCoordinator(store, _group_settings(settings))
            transactions = TransactionCoordinator(
                transaction_store,
                topics=topics,
                appends=appends,
                groups=groups,
                new_producer_id=producer_ids.next,
                settings=_transaction_settings(settings),
            )
            topics.after_deletion = lambda name: groups.remove_topics([name])
            services = Services(
                settings=settings,
                cluster_id=data.cluster_id,
                versions=advertised_versions(SERVED),
                topics=topics,
                appends=appends,
                response_buffers=BufferPool(settings.response_memory_bytes),
                producer_ids=producer_ids,
                groups=groups,
                transactions=transactions,
                metrics=self.metrics,
                requests=RequestMeters({api.key: api.name for api in SERVED}),
                authorizer=authorizer,
                quotas=_quotas(settings),
            )
            dispatcher = Dispatcher(SERVED, services)
            server = Server(settings, dispatcher, appends, self.metrics, tls=tls, users=users)
            # At the end: no more requests, answers for who waits in a group or polls, then the rest.
            stack.push_async_callback(_shielded, server.drain)
            await stack.enter_async_context(groups)
            await stack.enter_async_context(transactions)
            stack.callback(topics.stop)
            stack.callback(server.stop)
            server.listen(listener)

            tasks.start_soon(server.watch_connections)
            tasks.start_soon(sync_due_logs, topics, settings.fsync_interval, executor)
            tasks.start_soon(apply_retention, topics, settings.retention_check_interval)
            tasks.start_soon(compact_logs, topics, settings.compaction_check_interval)
            self._topics = topics
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        self._topics = None
        return await self._stack.__aexit__(exc_type, exc, traceback)


class _Storage:
    """What must be closed, in order, before the data directory may be called clean."""

    def __init__(self, data: DataDirectory) -> None:
        self.topics: Topics | None = None
        self.offsets: OffsetStore | None = None
        self.transactions: TransactionStore | None = None
        self._data = data

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            clean = False
            try:
                for store in (self.transactions, self.offsets):
                    if store is not None:
                        await to_thread.run_sync(store.close)
                if self.topics is not None:
                    await self.topics.close()
                clean = self.transactions is not None  # opened last, so all was opened
            except (LogError, OSError) as error:
                logger.error(
                    "not everything could be written; the logs are checked at the next start",
                    error=str(error),
                )
            finally:
                self._data.close(clean=clean)


async def _open_offsets(data: DataDirectory, settings: BrokerSettings) -> OffsetStore:
    directory = data.path / "offsets"
    open_store = partial(
        OffsetStore.open, directory, default_log_config(settings), clean=data.was_clean
    )
    try:
        return await to_thread.run_sync(open_store)
    except (LogError, OSError) as error:
        raise BrokerError(
            f"the committed offsets in {directory} cannot be read: {error}"
        ) from error


async def _open_transactions(data: DataDirectory, settings: BrokerSettings) -> TransactionStore:
    directory = data.path / "transactions"
    open_store = partial(
        TransactionStore.open, directory, default_log_config(settings), clean=data.was_clean
    )
    try:
        return await to_thread.run_sync(open_store)
    except (LogError, OSError) as error:
        raise BrokerError(f"the transactions in {directory} cannot be read: {error}") from error


def _open_producer_ids(data: DataDirectory) -> ProducerIds:
    path = data.path / "producer-ids"
    try:
        return ProducerIds(path)
    except (LogError, OSError) as error:
        raise BrokerError(f"the producer ids in {path} cannot be read: {error}") from error


def _tls_context(settings: BrokerSettings) -> ssl.SSLContext | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return server_context(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)


def _quotas(settings: BrokerSettings) -> Quotas | None:
    produce, fetch = settings.produce_quota_bytes, settings.fetch_quota_bytes
    if produce is None and fetch is None:
        return None
    return Quotas(
        produce=None if produce is None else Rate(produce),
        fetch=None if fetch is None else Rate(fetch),
    )


def _group_settings(settings: BrokerSettings) -> GroupSettings:
    return GroupSettings(
        min_session_timeout=settings.group_min_session_timeout,
        max_session_timeout=settings.group_max_session_timeout,
        initial_rebalance_delay=settings.group_initial_rebalance_delay,
        max_size=settings.group_max_size,
        offsets_retention=settings.offsets_retention_seconds,
        offset_metadata_max_bytes=settings.offset_metadata_max_bytes,
    )


def _transaction_settings(settings: BrokerSettings) -> TransactionSettings:
    return TransactionSettings(
        max_timeout_ms=round(settings.transaction_max_timeout * 1000),
        id_expiration_ms=round(settings.transactional_id_expiration_seconds * 1000),
    )


async def _cancel(tasks: TaskGroup) -> None:
    # Without the exception that leaves the broker, which the group would wrap.
    tasks.cancel_scope.cancel()
    await tasks.__aexit__(None, None, None)


async def _shielded(action: Callable[[], Awaitable[None]]) -> None:
    """Run a part of the orderly stop, also when the broker's task is being cancelled."""
    with anyio.CancelScope(shield=True):
        await action()
