"""The broker: composes all its parts, starts them in order and stops them in reverse."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Self

import anyio

from .apis.api import Node, Services
from .apis.catalogue import SERVED, advertised_versions
from .apis.meters import RequestMeters
from .apis.records.fetch_sessions import FetchSessions
from .authorization.rules import Authorizer
from .authorization.users import OneUser, Users
from .coordinators.group_coordinator import GroupCoordinator
from .coordinators.transaction_coordinator import TransactionCoordinator
from .listeners import Listener
from .operations.health import BrokerState, Health
from .operations.maintenance import Maintenance
from .operations.metrics import BrokerCollector, BrokerMetrics
from .response_buffers import ResponseBuffers
from .server.dispatch import Dispatcher
from .server.faults import Faults, read_faults
from .server.server import Endpoint, Server, bind
from .server.tls import server_context
from .storage.data_directory import DataDirectory
from .storage.group_commit import SYNC_THREADS, GroupCommit
from .storage.storage import BrokerStorage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from anyio.abc import TaskGroup

    from .settings import BrokerSettings
    from .topics.topics import Topics

_ANY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  not for binding


class LocalClient(NamedTuple):
    """The address, user and password of a client; it authenticates by SASL SCRAM."""

    bootstrap_servers: str
    user: str
    password: str


class Broker:
    """One node that speaks Kafka's protocol, while it is entered.

        async with Broker(BrokerSettings(data_dir=path, port=0)) as broker:
            print(broker.bootstrap_servers)

    It runs in the event loop that enters it. On exit it answers the requests that it has begun to handle,
    then writes, syncs and closes its logs.

    A test adds faults to `faults`: requests then fail, wait, lose their connection or are never answered.

    Entering raises BrokerError if the port or the data directory is in use, or if the data, the
    certificate, the users or the access rules cannot be read.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.metrics = BrokerMetrics()
        self.health = Health(settings.data_dir)
        self.faults = Faults()
        self._listeners: Sequence[Listener] = settings.addresses()
        self._http_url: str | None = None
        self._server: Server | None = None
        self._authorizer: Authorizer | None = None
        self._topics: Topics | None = None
        self._stack = AsyncExitStack()

    @property
    def bootstrap_servers(self) -> str:
        """`HOST:PORT` for clients of the first listener: as advertised, or one that works on this machine."""
        return next(iter(self.listeners.values()))

    @property
    def listeners(self) -> Mapping[str, str]:
        """`HOST:PORT` for the clients of each listener, by its name."""
        return {
            each.name: replace(each, host=_ANY_ADDRESS.get(each.host, each.host)).address
            for each in self._listeners
        }

    @property
    def http_url(self) -> str | None:
        """Base URL of `/live`, `/ready` and `/metrics`, such as `http://127.0.0.1:8080`; None: not served."""
        return self._http_url

    @property
    def topics(self) -> Topics:
        """The topics of a running broker. Raises RuntimeError if it does not run."""
        if self._topics is None:
            raise RuntimeError("the broker is not running: use it with `async with`")
        return self._topics

    async def __aenter__(self) -> Self:
        settings, supervisor = self.settings, self.health.supervisor
        async with AsyncExitStack() as stack:
            tls = None
            if settings.tls_certificate and settings.tls_key:
                tls = server_context(
                    settings.tls_certificate, settings.tls_key, settings.tls_client_ca
                )
            for fault in read_faults(settings.faults_file) if settings.faults_file else ():
                self.faults.add(fault)
            users = Users(settings.users_file) if settings.users_file else None
            authorizer = None
            if settings.acl_file:
                authorizer = Authorizer(
                    settings.acl_file,
                    super_users=settings.super_users,
                    allow_if_no_acl=settings.allow_if_no_acl,
                )
            await self._serve_http(stack)
            endpoints = []
            for listener in settings.addresses():
                bound = bind(listener.host, listener.port)
                stack.callback(bound.close)
                endpoints.append(
                    Endpoint(
                        replace(listener, port=bound.getsockname()[1]),
                        bound,
                        users if listener.is_authenticated else None,
                        tls if listener.is_encrypted else None,
                    )
                )
            self._listeners = [each.listener for each in endpoints]
            executor = stack.enter_context(ThreadPoolExecutor(SYNC_THREADS, "fsync"))

            data = DataDirectory(settings.data_dir)
            if users is not None:
                users.secret = data.secret
            storage = BrokerStorage(data, settings)
            stack.push_async_callback(storage.close)
            await storage.open()
            topics = storage.topics

            group_commit = GroupCommit(sync=settings.fsync == "always", executor=executor)
            stack.push_async_callback(_shielded, group_commit.drain)
            tasks = await anyio.create_task_group().__aenter__()
            stack.push_async_callback(_cancel, tasks)

            groups = GroupCoordinator(
                storage.offsets,
                settings,
                topics=topics,
                own=storage.group_settings,
                supervisor=supervisor,
            )
            transactions = TransactionCoordinator(
                storage.transactions,
                topics=topics,
                group_commit=group_commit,
                offsets=storage.offsets,
                producer_ids=storage.producer_ids,
                settings=settings,
                supervisor=supervisor,
            )
            topics.after_deletion = lambda name: groups.remove_topics([name])
            services = Services(
                node=Node(settings, self._listeners, data.cluster_id, advertised_versions(SERVED)),
                topics=topics,
                group_commit=group_commit,
                response_buffers=ResponseBuffers(settings.response_memory_bytes),
                computing=anyio.CapacityLimiter(1),
                groups=groups,
                transactions=transactions,
                fetch_sessions=FetchSessions(),
                requests=RequestMeters({api.key: api.name for api in SERVED}),
                authorizer=authorizer,
            )
            dispatcher = Dispatcher(SERVED, services, self.faults)
            server = Server(settings, dispatcher, group_commit, self.metrics)
            collector = BrokerCollector(services, server, supervisor)
            self.metrics.registry.register(collector)
            stack.callback(self.metrics.registry.unregister, collector)
            # The stop, in reverse: accept no requests, end long polls, close the coordinators, which answers
            # waiting members, let the server send its responses.
            stack.push_async_callback(_shielded, server.drain)
            await stack.enter_async_context(groups)
            await stack.enter_async_context(transactions)
            stack.callback(topics.stop)
            stack.callback(server.stop)
            stack.callback(self.faults.stop)
            for endpoint in endpoints:
                server.listen(endpoint)

            tasks.start_soon(server.watch_connections, supervisor)
            Maintenance(topics, executor, supervisor).start(tasks, settings)
            self.health.watch(group_commit, topics)
            self._topics, self._server, self._authorizer = topics, server, authorizer
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        self._topics = self._server = None
        self.health.state = BrokerState.STOPPING
        return await self._stack.__aexit__(exc_type, exc, traceback)

    def admit_client(self) -> LocalClient:
        """Listen on one more port of this machine, for a client that this process trusts with everything.

        It needs no certificate, and a password that nobody else knows. Raises RuntimeError if the broker does
        not run.
        """
        if self._server is None:
            raise RuntimeError("the broker is not running: use it with `async with`")
        name, password = f"local-{secrets.token_hex(16)}", secrets.token_hex(32)
        bound = bind("127.0.0.1", 0)
        listener = Listener("LOCAL", "SASL_PLAINTEXT", *bound.getsockname()[:2])
        self._server.listen(Endpoint(listener, bound, OneUser(name, password), None))
        if self._authorizer is not None:
            self._authorizer.trust(f"User:{name}")
        return LocalClient(listener.address, name, password)

    async def _serve_http(self, stack: AsyncExitStack) -> None:
        """Serve HTTP from before the logs are opened, which may take long, until they are closed."""
        settings = self.settings
        if settings.http_port is None:
            return
        from .operations.endpoints import BrokerHealthServer  # starlette takes time to import

        server = BrokerHealthServer(
            settings.http_host, settings.http_port, self.health, self.metrics.registry
        )
        await stack.enter_async_context(server)
        self._http_url = server.url


async def _cancel(tasks: TaskGroup) -> None:
    # Pass no exception: the task group would wrap one that leaves the broker.
    tasks.cancel_scope.cancel()
    await tasks.__aexit__(None, None, None)


async def _shielded(action: Callable[[], Awaitable[None]]) -> None:
    """Run a step of the stop, even if the broker's task is being cancelled."""
    with anyio.CancelScope(shield=True):
        await action()
