"""The system under test: a broker, a ClickHouse, workers, and the ways between them."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, Self

import anyio
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, for_code
from anyio import to_thread
from clickhouse_connect.driver.exceptions import ClickHouseError

from chaos import tables
from chaos.kafka_link import KafkaLink
from chaos.postgres import PostgresServer
from chaos.producers import Load
from chaos.proxies import HttpLink
from chaos.resources import watch_memory, watch_resources
from chaos.workload import FILES, HANG
from kmr.chaos import site as worker_site
from kmr.chaos.services import START_TIMEOUT, RunningServices, ServiceFailed, free_port
from kmr.chaos.site import GroupsView
from kmr.record import TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from anyio.abc import TaskGroup

    from chaos.history import Recorder
    from chaos.shape import GroupSpec, Outside, Shape
    from kmr.chaos.services import Service

_ROOT: Final = Path(__file__).resolve().parents[1]
_SESSION_TIMEOUT: Final = 3.0
"""Seconds: after every kill of a worker, its group waits for so long."""
_SHORTEST_ELSEWHERE: Final = 6.0
"""Seconds: the shortest session timeout that a broker accepts by default."""
_WORKER_FLAGS: Final = ("--heartbeat-interval", "0.3", "--commit-interval", "0.3")
_RESULT_PARTITIONS: Final = 3
_SPARK_FLAGS: Final = ("--trigger", "500ms", "--max-offsets-per-trigger", "10000")


def _together(name: str, workers: int) -> tuple[str, ...]:
    # Named members: a command that is killed and started again has the same ones.
    return ("--workers", str(workers), "--group-instance-id", name)


@dataclass(eq=False)
class Worker(worker_site.WorkerUnderTest):
    """A worker with ways to the broker and to ClickHouse.

    Attributes:
        hang: a file; when there is one, the map of the worker takes it away and hangs.
    """

    hang: Path = field(kw_only=True)
    kafka: KafkaLink | None = None
    clickhouse: HttpLink | None = None

    async def refusal(self) -> str:
        """Start a worker that has to end with exit code 1; return the last line of its output."""
        async with self._lock:
            await self.service.start()
            await self.service.until_ended()
            return self.service.refused().splitlines()[-1]


class Site(worker_site.SystemUnderTest):
    """Everything that runs, from the first process to the last; an async context manager."""

    def __init__(self, shape: Shape, outside: Outside, directory: Path, recorder: Recorder) -> None:
        self.shape = shape
        self.recorder = recorder
        self.workers: list[Worker] = []
        self.postgres: PostgresServer | None = None
        names = ["chaos", *(f"chaos-{number}" for number in range(2, shape.topics + 1))]
        self.topics = [name + outside.suffix for name in names]
        self._outside = outside
        self._stack = AsyncExitStack()
        self._directory = directory
        self._services = RunningServices(directory / "logs", recorder, _ROOT)
        self.bootstrap_servers = outside.bootstrap_servers or f"127.0.0.1:{free_port()}"
        self.clickhouse_url = outside.clickhouse_url or f"http://127.0.0.1:{free_port()}"
        self.groups = [spec.with_suffix(outside.suffix) for spec in shape.groups]
        self.load = Load(
            self.bootstrap_servers,
            self.topics,
            shape.partitions,
            recorder,
            rate=shape.rate,
            poison_every=shape.poison_every,
            repeat_every=shape.repeat_every,
        )
        self.view = GroupsView(
            self.bootstrap_servers, (spec.name for spec in self.groups), recorder
        )

    async def __aenter__(self) -> Self:
        """Raises ServiceFailed when the system does not come up."""
        try:
            await self._set_up()
        except BaseException as error:
            await self._stack.aclose()
            if isinstance(error, KafkaError | ClickHouseError | OSError):
                where = f"{self.bootstrap_servers} and {self.clickhouse_url}"
                raise ServiceFailed(f"cannot work with {where}: {error}") from error
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def start_load(self, seed: int) -> anyio.Event:
        """Let records flow until `load.stop`; the event is set when all of them were answered."""
        finished = anyio.Event()

        async def run() -> None:
            await self.load.run(Random(seed))  # noqa: S311  no secrets
            finished.set()

        self._tasks.start_soon(run)
        return finished

    @property
    def logs(self) -> dict[TopicPartition, Path]:
        """The directory of each partition's log, in the broker that is ours."""
        topics = self._directory / "broker" / "topics"
        return {
            TopicPartition(topic, partition): topics / topic / str(partition)
            for topic in self.topics
            for partition in range(self.shape.partitions)
        }

    @property
    def acknowledged(self) -> Mapping[tuple[str, int], int]:
        return {
            (topic, partition): end
            for topic, ends in self.recorder.acknowledged.items()
            for partition, end in ends.items()
        }

    async def _set_up(self) -> None:
        stack = self._stack
        await stack.enter_async_context(self._services)
        await self._start_services()
        await self._create_topics()
        for spec in self.groups:
            await tables.create(self.places, spec.workload)
        await self._declare_workers(stack)
        self._tasks: TaskGroup = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(self._tasks.cancel_scope.cancel)
        self._tasks.start_soon(self.view.watch)
        self._tasks.start_soon(watch_memory, self._services, self.recorder)
        if every := self.shape.sample_every:
            self._tasks.start_soon(watch_resources, self._services, self.recorder, every)
        for worker in self.workers:
            await worker.service.start()
        self._tasks.start_soon(self.supervise)
        with anyio.move_on_after(START_TIMEOUT) as patience:
            await self.until_shared()
        if patience.cancelled_caught:
            logs = "\n".join(worker.service.tail() for worker in self.workers)
            raise ServiceFailed(f"the workers do not share the partitions:\n{logs}")

    async def _start_services(self) -> None:
        if self._outside.bootstrap_servers is None:
            host, _, port = self.bootstrap_servers.rpartition(":")
            data = str(self._directory / "broker")
            flags = (
                *("--data", data, "--host", host, "--port", port, "--no-auto-create-topics"),
                *("--group-min-session-timeout", f"{_SESSION_TIMEOUT:g}"),
            )
            self.broker = broker = self._services.add(
                "broker",
                lambda: ["broker", "serve", *flags, *broker.http_flags],
                ready_line="listening on",
            )
            self._listen(broker)
            await broker.start()
        if any(spec.workload.sink == "postgres" for spec in self.groups):
            server = PostgresServer()
            self._stack.push_async_callback(to_thread.run_sync, server.__exit__)
            self.postgres = await to_thread.run_sync(server.__enter__)
        if self._outside.clickhouse_url is None and self._has_clickhouse:
            port = self.clickhouse_url.rpartition(":")[2]
            path = str(self._directory / "clickhouse")
            self.clickhouse = self._services.add(
                "clickhouse",
                lambda: ["clickhouse", "serve", "--data", path, "--port", port],
                ready_line="answers on",
            )
            await self.clickhouse.start()

    async def clean_up(self) -> None:
        """Leave nothing behind in services that are not ours."""
        if self._outside.clickhouse_url is not None:
            for spec in self.groups:
                await tables.drop(self.clickhouse_url, spec.workload)
        if self._outside.bootstrap_servers is not None:
            async with self.admin() as admin:
                await admin.delete_topics([*self.topics, *self._dead_topics(), *self._results()])

    @property
    def _has_clickhouse(self) -> bool:
        return any(
            spec.workload.sink == "clickhouse" or spec.workload.dead_table for spec in self.groups
        )

    @property
    def places(self) -> tables.Places:
        """Where the groups write to."""
        url = "" if self.postgres is None else self.postgres.url
        return tables.Places(self.clickhouse_url, url, self._directory / "files")

    def _dead_topics(self) -> list[str]:
        return sorted(spec.workload.dead_topic for spec in self.groups if spec.workload.dead_topic)

    def _results(self) -> list[str]:
        return [spec.workload.topic for spec in self.groups if spec.workload.topic]

    async def _create_topics(self) -> None:
        replicas = self._outside.replicas
        configs = dict(self.shape.topic_configs)
        topics = [
            NewTopic(name, self.shape.partitions, replicas, topic_configs=configs)
            for name in self.topics
        ]
        topics += [NewTopic(name, 1, replicas) for name in self._dead_topics()]
        topics += [NewTopic(name, _RESULT_PARTITIONS, replicas) for name in self._results()]
        async with self.admin() as admin:
            answer = await admin.create_topics(topics)
        for name, code, *_ in answer.topic_errors:
            if code:
                raise ServiceFailed(f"topic {name}: {for_code(code).__name__}")

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    async def _declare_workers(self, stack: AsyncExitStack) -> None:
        for spec in self.groups:
            for number in range(1, spec.commands + 1):
                kafka, clickhouse = None, None
                bootstrap_servers, url = self.bootstrap_servers, self.clickhouse_url
                if self.shape.links:
                    kafka = await stack.enter_async_context(KafkaLink(bootstrap_servers))
                    clickhouse = await stack.enter_async_context(HttpLink())
                    bootstrap_servers = await kafka.bootstrap_servers()
                    url = await clickhouse.stand_in(url)
                service = self._declare(f"{spec.name}-{number}", spec, bootstrap_servers, url)
                joins = spec.engine == "worker"
                hang = self._hang(service.name)
                self.workers.append(
                    Worker(
                        *(service, spec.name, joins), hang=hang, kafka=kafka, clickhouse=clickhouse
                    )
                )

    def _declare(self, name: str, spec: GroupSpec, bootstrap_servers: str, url: str) -> Service:
        arguments = [
            *("run", "chaos.workload:strategy", "--group", spec.name),
            *(flag for topic in self.topics for flag in ("--topic", topic)),
            *("--bootstrap-servers", bootstrap_servers, "--isolation-level", "read_committed"),
            *(self._spark_flags(name) if spec.engine == "spark" else self._worker_flags()),
            *(_together(name, spec.workers) if spec.together else ()),
            *self.shape.flags,
        ]
        service = self._services.add(
            name,
            lambda: [*arguments, "--client-id", f"{name}.{service.starts}", *service.http_flags],
            ready_line="Setting Spark log level" if spec.engine == "spark" else "] assigned ",
            waits=False,
            KMR_CLICKHOUSE_URL=url,
            KMR_POSTGRES_URL=self.places.postgres,
            **{HANG: str(self._hang(name)), FILES: str(self.places.files)},
            **spec.workload.environment(),
        )
        self._listen(service)
        return service

    def _listen(self, service: Service) -> None:
        if self.shape.sample_every:
            service.http_port = free_port()

    def _hang(self, name: str) -> Path:
        return self._directory / f"hang-{name}"

    def _worker_flags(self) -> list[str]:
        ours = self._outside.bootstrap_servers is None
        timeout = _SESSION_TIMEOUT if ours else _SHORTEST_ELSEWHERE
        return ["--session-timeout", f"{timeout:g}", *_WORKER_FLAGS]

    def _spark_flags(self, name: str) -> list[str]:
        checkpoint = str(self._directory / f"checkpoint-{name}")
        return [
            "--engine",
            "spark",
            "--master",
            "local[2]",
            "--checkpoint",
            checkpoint,
            *_SPARK_FLAGS,
        ]
