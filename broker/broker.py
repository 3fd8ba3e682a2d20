"""The broker: everything it is made of, started and stopped in the right order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import anyio

from broker.api import Services
from broker.appends import SYNC_THREADS, Appends
from broker.buffers import BufferPool
from broker.compactor import compact_logs
from broker.datadir import DataDirectory
from broker.dispatch import SERVED, Dispatcher, advertised_versions
from broker.groups.coordinator import STORE_INTERVAL, GroupCoordinator
from broker.health.health import BrokerState, Health
from broker.maintenance import apply_retention, sync_due_logs
from broker.membership import GroupSettings
from broker.security.acls import Authorizer
from broker.security.quotas import Quotas, Rate
from broker.security.tls import server_context
from broker.security.users import Users
from broker.server.server import SWEEP_INTERVAL, Server, bind
from broker.server.shared import Shared
from broker.storage import Storage
from broker.telemetry.collector import BrokerCollector
from broker.telemetry.metrics import Metrics
from broker.telemetry.requests import RequestMeters
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.types import TransactionSettings

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from anyio.abc import TaskGroup

    from broker.settings import BrokerSettings
    from broker.topics.topics import Topics

__all__ = ["Broker"]

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
        self.health = Health(settings.data_dir)
        self._port = 0
        self._http_url: str | None = None
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
    def http_url(self) -> str | None:
        """Where `/live`, `/ready` and `/metrics` are served, if they are: `http://127.0.0.1:8080`."""
        return self._http_url

    @property
    def topics(self) -> Topics:
        """The topics of a broker that is running."""
        if self._topics is None:
            raise RuntimeError("the broker is not running: use it with `async with`")
        return self._topics

    async def __aenter__(self) -> Self:
        settings, expect = self.settings, self.health.progress.expect
        async with AsyncExitStack() as stack:
            tls = _tls_context(settings)
            users = Users(settings.users_file) if settings.users_file else None
            authorizer = Authorizer(settings.acl_file) if settings.acl_file else None
            await self._serve_http(stack)
            listener = bind(settings.host, settings.port)
            stack.callback(listener.close)
            self._port = listener.getsockname()[1]
            executor = stack.enter_context(ThreadPoolExecutor(SYNC_THREADS, "fsync"))

            data = DataDirectory(settings.data_dir)
            storage = Storage(data, settings)
            stack.push_async_callback(storage.close)
            await storage.open()
            topics = storage.topics

            appends = Appends(sync=settings.fsync == "always", executor=executor)
            stack.push_async_callback(_shielded, appends.drain)
            tasks = await anyio.create_task_group().__aenter__()
            stack.push_async_callback(_cancel, tasks)

            groups = GroupCoordinator(
                storage.offsets,
                _group_settings(settings),
                beat=expect("the care of committed offsets", STORE_INTERVAL),
            )
            transaction_settings = _transaction_settings(settings)
            transactions = TransactionCoordinator(
                storage.transactions,
                topics=topics,
                appends=appends,
                groups=groups,
                new_producer_id=storage.producer_ids.next,
                settings=transaction_settings,
                beat=expect("the care of transactions", transaction_settings.check_interval),
            )
            topics.after_deletion = lambda name: groups.remove_topics([name])
            services = Services(
                settings=settings,
                cluster_id=data.cluster_id,
                versions=advertised_versions(SERVED),
                topics=topics,
                appends=appends,
                response_buffers=BufferPool(settings.response_memory_bytes),
                producer_ids=storage.producer_ids,
                groups=groups,
                transactions=transactions,
                metrics=self.metrics,
                requests=RequestMeters({api.key: api.name for api in SERVED}),
                users=users,
                authorizer=authorizer,
                quotas=_quotas(settings),
            )
            dispatcher = Dispatcher(SERVED, services)
            shared = Shared(settings, dispatcher, appends, self.metrics, users)
            server = Server(shared, tls=tls)
            collector = BrokerCollector(services, server, storage.internal_logs)
            self.metrics.registry.register(collector)
            stack.callback(self.metrics.registry.unregister, collector)
            # At the end: no more requests, answers for who waits in a group or polls, then the rest.
            stack.push_async_callback(_shielded, server.drain)
            await stack.enter_async_context(groups)
            await stack.enter_async_context(transactions)
            stack.callback(topics.stop)
            stack.callback(server.stop)
            server.listen(listener)

            self._maintain(tasks, server, topics, executor)
            self.health.watch(appends, topics, storage.internal_logs.values())
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
        self.health.state = BrokerState.STOPPING
        return await self._stack.__aexit__(exc_type, exc, traceback)

    def _maintain(
        self, tasks: TaskGroup, server: Server, topics: Topics, executor: ThreadPoolExecutor
    ) -> None:
        """Begin what is done from time to time."""
        settings, expect = self.settings, self.health.progress.expect
        tasks.start_soon(
            server.watch_connections, expect("the watch over connections", SWEEP_INTERVAL)
        )
        every = settings.fsync_interval
        beat = expect("the syncing of logs", every)
        tasks.start_soon(sync_due_logs, topics, every, executor, beat)
        every = settings.retention_check_interval
        tasks.start_soon(apply_retention, topics, every, expect("retention", every))
        every = settings.compaction_check_interval
        tasks.start_soon(compact_logs, topics, every, expect("compaction", every))

    async def _serve_http(self, stack: AsyncExitStack) -> None:
        """From before the logs are opened, which may take long, until they are closed."""
        settings = self.settings
        if settings.http_port is None:
            return
        from broker.health.http import HealthServer  # its libraries take time to import

        server = HealthServer(
            settings.http_host, settings.http_port, self.health, self.metrics.registry
        )
        await stack.enter_async_context(server)
        self._http_url = server.url


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
