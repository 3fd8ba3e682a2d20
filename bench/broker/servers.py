"""The servers that are measured: ours with a flush policy, and Apache Kafka with its own (none)."""

from __future__ import annotations

import os
import shutil
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.process import cpu_seconds
from demo.processes import Children
from interop.lock import LOCK
from interop.maven import FetchFailed, fetch, read_lock
from interop.nodes import DISTRIBUTED_JVM, Cluster
from kmr.chaos.services import free_port
from kmr.spark.jvm import JvmNotFound, cache_directory, find_jvm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

Fsync = Literal["os", "interval", "always"]


class NoKafka(Exception):
    """There is no Apache Kafka to measure; the message says why."""


_RESET_PEAK = "5"  # see proc(5), clear_refs
_DELETED_AT_ONCE = {"file.delete.delay.ms": "0"}  # else the next workload gets less memory
_TIMEOUT = 120.0
_LOG_CRITICAL = 2


@dataclass(frozen=True)
class Server:
    """One running server, and what its process took."""

    name: str
    address: str
    pid: int

    @property
    def cpu(self) -> float:
        """Processor time so far, in seconds."""
        return cpu_seconds(self.pid)

    @property
    def peak_mb(self) -> float:
        """Most memory at a time since `forget_peak`, in megabytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024

    def forget_peak(self) -> None:
        """From now on the peak is counted anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text(_RESET_PEAK)

    @contextmanager
    def on_one_processor(self) -> Iterator[None]:
        """The server and the clients that start meanwhile share one processor.

        Then no message wakes an idle processor up. In a virtual machine that may take longer than all the
        work for a small request, and is the same for every server.
        """
        everywhere = os.sched_getaffinity(0)
        try:
            self._move({min(everywhere)})
            yield
        finally:
            self._move(everywhere)

    def _move(self, processors: set[int]) -> None:
        os.sched_setaffinity(0, processors)  # clients inherit it
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread.name), processors)

    def create(self, topic: str, partitions: int) -> None:
        """A topic, ready for use."""
        admin = self._admin()  # its requests end with it
        new = NewTopic(topic, partitions, 1, config=_DELETED_AT_ONCE)
        admin.create_topics([new])[topic].result(_TIMEOUT)

    def delete(self, topic: str) -> None:
        """The topic and its files."""
        admin = self._admin()
        admin.delete_topics([topic])[topic].result(_TIMEOUT)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": _LOG_CRITICAL})


@asynccontextmanager
async def ours(directory: Path, fsync: Fsync, name: str = "kmr") -> AsyncIterator[Server]:
    """The bundled broker on data in `directory`, which is removed afterwards."""
    port = free_port()
    async with Children(directory / "logs") as children:
        child = await children.start(
            "broker",
            *("broker", "serve", "--data", str(directory / "broker"), "--port", str(port)),
            *("--fsync", fsync),
        )
        await children.wait_for_port(child, port)
        yield Server(name, f"127.0.0.1:{port}", child.pid)
    shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def apache_kafka(directory: Path) -> AsyncIterator[Server]:
    """One node of Apache Kafka from Maven Central, as it is by default: it leaves flushing to the system.

    Raises NoKafka.
    """
    lock = read_lock(LOCK)
    try:
        jvm = find_jvm()
        jars = await anyio.to_thread.run_sync(fetch, lock, cache_directory(os.environ) / "maven")
    except (JvmNotFound, FetchFailed) as error:
        raise NoKafka(str(error)) from error
    version = next(each.version for each in lock if each.name == "kafka-clients")
    async with Cluster(jvm.java, jars, directory, 1, jvm=DISTRIBUTED_JVM) as cluster:
        process = cluster.nodes[0].process
        assert process is not None
        yield Server(f"Apache Kafka {version}", cluster.bootstrap_servers, process.pid)
    shutil.rmtree(directory, ignore_errors=True)
