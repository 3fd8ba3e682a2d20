"""Brokers on a simulated disk that loses unsynced data."""
# ruff: noqa: E402  what asserts must be registered before it is imported

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import structlog

pytest.register_assert_rewrite("chaos.disks.auditor", "chaos.disks.wire", "chaos.disks.workload")

from chaos.disks.auditor import Auditor
from chaos.disks.promises import History
from chaos.disks.wire import look
from chaos.disks.workload import PARTS, Workload
from kmr.broker import Broker, BrokerSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from pathlib import Path

    from chaos.disks.disk import Disk
    from chaos.disks.wire import Found

    Connect = Callable[[Broker], Awaitable[Any]]


@dataclass(frozen=True)
class Tools:
    """Tools of this folder's tests."""

    connect: Connect

    async def work(
        self,
        disk: Disk,
        fsync: str = "always",
        *,
        parts: Collection[str] = tuple(PARTS),
        rounds: int = 2,
        **settings: Any,
    ) -> History:
        """Let clients work on a broker below the disk's root, which is restarted between rounds."""
        history = History(disk)
        for round_ in range(rounds):
            async with self.broker(disk.root, fsync, **settings) as broker:
                clients = await self.connect(broker), await self.connect(broker)
                await Workload(history, broker, clients).run(round_, parts)
        return history

    def history(self, disk: Disk) -> History:
        """An empty one."""
        return History(disk)

    def broker(self, root: Path, fsync: str, **settings: Any) -> Broker:
        """A broker below a disk's root."""
        return Broker(
            BrokerSettings(data_dir=root / "data", port=0, fsync=fsync, **settings)  # type: ignore[arg-type]
        )

    async def look(self, client: Any) -> Found:
        """Everything that clients can see. Raises LookupError if they get an error."""
        return await look(client)

    async def audit(
        self, root: Path, history: History, at: int, fsync: str = "always", *, durable: bool
    ) -> None:
        """Start a broker on the files of a crash, twice, and check what its clients see."""
        auditor = Auditor(history, at, durable=durable)
        async with self.broker(root, fsync) as broker:
            client = await self.connect(broker)
            first = await look(client)
            auditor.check(first)
            await auditor.check_producers(client)
            after = await look(client)
            assert after == first or not durable
            await auditor.check_epochs(client)
            last = await look(client)
            await client.close()
        async with self.broker(root, fsync) as broker:
            client = await self.connect(broker)
            assert await look(client) == last
            await client.close()


@pytest.fixture
def tools(connect: Connect) -> Tools:
    return Tools(connect)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty directory, for a disk."""
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """A recovery has much to say, a thousand of them too much."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())


@pytest.fixture
def moments() -> Callable[[int, int], range]:
    """Numbers of operations from 0 to `end`, both included, each `stride`th of them.

    All of them with KMR_EVERY_CRASH=1 in the environment, which takes minutes.
    """
    every = os.environ.get("KMR_EVERY_CRASH") == "1"
    return lambda end, stride: range(0, end + 1, 1 if every else stride)
