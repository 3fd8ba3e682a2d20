"""Apache Kafka as processes on loopback: KRaft, each node both broker and controller."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import uuid
from typing import TYPE_CHECKING, Final, Self

import anyio
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from kmr.chaos.services import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from anyio.abc import Process

__all__ = ["DISTRIBUTED_JVM", "QUICK_JVM", "Cluster", "Node", "NodeFailed"]

_START_TIMEOUT: Final = 180.0  # seconds, on a machine that has much else to do
_STOP_TIMEOUT: Final = 60.0
_POLL: Final = 0.25
_TAIL: Final = 30  # lines

QUICK_JVM: Final = (
    "-Xmx512m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Djava.awt.headless=true",
)
"""A small JVM that starts fast, for nodes that live for minutes."""

DISTRIBUTED_JVM: Final = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""JVM options of Apache Kafka's own start scripts, for measurements."""
_LOGGING: Final = ("-Dorg.apache.logging.log4j.level=INFO",)

_PROPERTIES: Final = """\
process.roles=broker,controller
node.id={id}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
default.replication.factor={replicas}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=8
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=8
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=8388608
"""


class NodeFailed(Exception):
    """A node did not start, or ended; the message has the last lines of its log."""


class Node:
    """One node; its process may be killed and started again on the same data.

    Attributes:
        id: its `node.id`, from 1.
        port: of 127.0.0.1, for clients.
    """

    def __init__(self, number: int, directory: Path) -> None:
        self.id = number
        self.port, self.controller_port = free_port(), free_port()
        self.log = directory / f"kafka-{number}.log"
        self.properties = directory / f"kafka-{number}.properties"
        self.data = directory / f"kafka-{number}"
        self.process: Process | None = None

    @property
    def voter(self) -> str:
        """As `controller.quorum.voters` names it."""
        return f"{self.id}@127.0.0.1:{self.controller_port}"

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self.process is not None and self.process.returncode is None

    def tail(self) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-_TAIL:])


class Cluster:
    """Nodes that are formatted and started on entering, and stopped on leaving.

    With three nodes or more: replication 3, and two replicas must have each record that is acknowledged to
    `acks=all`.

    Args:
        java: the program.
        class_path: Apache Kafka's jars.
        directory: takes data and logs; new or empty.
        jvm: the options that each node is started with.
    """

    def __init__(
        self,
        java: Path,
        class_path: Sequence[Path],
        directory: Path,
        nodes: int,
        *,
        jvm: Sequence[str] = QUICK_JVM,
    ) -> None:
        self.nodes = [Node(number, directory) for number in range(1, nodes + 1)]
        self._directory = directory
        self._command = [str(java), *jvm, *_LOGGING]
        self._command += ["-cp", os.pathsep.join(map(str, class_path))]

    @property
    def bootstrap_servers(self) -> str:
        """Every node's address."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def replicas(self) -> int:
        """The replication factor of every topic that does not say otherwise."""
        return min(len(self.nodes), 3)

    async def __aenter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for node in self.nodes:
            node.properties.write_text(self._settings(node))
        try:
            async with anyio.create_task_group() as tasks:
                for node in self.nodes:
                    tasks.start_soon(self._format, node, cluster_id)
            for node in self.nodes:
                await self._launch(node)
            await self.until_registered()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

    def node(self, number: int) -> Node:
        """The node with this `node.id`."""
        return self.nodes[number - 1]

    async def kill(self, node: Node) -> None:
        """Kill it by SIGKILL."""
        if node.process is not None:
            node.process.kill()
            await node.process.wait()

    async def start(self, node: Node) -> None:
        """Start a node again that was killed, and wait until the cluster has it. Raises NodeFailed."""
        await self._launch(node)
        await self.until_registered()

    async def until_registered(self) -> None:
        """Wait until every node is known to the cluster. Raises NodeFailed when that takes too long."""
        seen = 0
        with anyio.move_on_after(_START_TIMEOUT):
            while seen < len(self.nodes):
                self._check()
                seen = await self._registered()
                await anyio.sleep(_POLL)
            return
        logs = "\n".join(node.tail() for node in self.nodes)
        raise NodeFailed(
            f"{seen} of {len(self.nodes)} nodes of Apache Kafka are there "
            f"after {_START_TIMEOUT:g} s:\n{logs}"
        )

    async def _registered(self) -> int:
        admin = AIOKafkaAdminClient(
            bootstrap_servers=self.bootstrap_servers, request_timeout_ms=5_000
        )
        try:
            await admin.start()
            return len((await admin.describe_cluster())["brokers"])
        except (KafkaError, OSError):
            return 0
        finally:
            await admin.close()

    def _check(self) -> None:
        for node in self.nodes:
            if not node.running:
                raise NodeFailed(f"node {node.id} of Apache Kafka ended:\n{node.tail()}")

    def _settings(self, node: Node) -> str:
        return _PROPERTIES.format(
            id=node.id,
            port=node.port,
            controller_port=node.controller_port,
            voters=",".join(each.voter for each in self.nodes),
            data=node.data,
            replicas=self.replicas,
            in_sync=max(self.replicas - 1, 1),
        )

    async def _format(self, node: Node, cluster_id: str) -> None:
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(node.properties)]
        done = await anyio.run_process(
            [*self._command, *tool], stderr=subprocess.STDOUT, check=False
        )
        if done.returncode:
            raise NodeFailed(f"node {node.id} cannot be formatted:\n{done.stdout.decode()}")

    async def _launch(self, node: Node) -> None:
        with node.log.open("ab") as output, anyio.CancelScope(shield=True):
            node.process = await anyio.open_process(
                [*self._command, "kafka.Kafka", str(node.properties)],
                stdin=None,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches us alone
            )

    async def _end(self) -> None:
        """SIGTERM for all of them, SIGKILL for those that do not end."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for node in self.nodes:
                    tasks.start_soon(self._stop, node)

    async def _stop(self, node: Node) -> None:
        if node.process is None:
            return
        if node.running:
            node.process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(_STOP_TIMEOUT):
            await node.process.wait()
        if node.running:
            node.process.kill()
        await node.process.wait()
