"""What both engines share: a broker with the topic, and ClickHouse with one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import clickhouse_connect
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from kmr.chaos.services import free_port

if TYPE_CHECKING:
    from demo.processes import Children

__all__ = ["PARTITIONS", "TABLE", "TOPIC", "Services", "create_tables"]

TOPIC: Final = "flights"
TABLE: Final = "flights"
PARTITIONS: Final = 8

_TABLES: Final = Path(__file__).with_name("tables.sql")


class Services:
    """A broker and a ClickHouse, as child processes.

    Args:
        directory: what they keep is below it.

    Attributes:
        broker: its bootstrap server.
        clickhouse_url: of ClickHouse.
    """

    def __init__(self, directory: Path, children: Children) -> None:
        self._directory = directory
        self._children = children
        self._broker_port = free_port()
        self._clickhouse_port = free_port()
        self.broker = f"127.0.0.1:{self._broker_port}"
        self.clickhouse_url = f"http://127.0.0.1:{self._clickhouse_port}"

    async def start(self) -> None:
        """Start both, make the topic and the tables.

        Raises:
            ChildFailed: one of them ended, or does not listen.
        """
        ports = {"broker": self._broker_port, "clickhouse": self._clickhouse_port}
        started = [
            await self._children.start(
                name,
                *(name, "serve", "--data", str(self._directory / name), "--port", str(port)),
            )
            for name, port in ports.items()
        ]
        for child, port in zip(started, ports.values(), strict=True):
            await self._children.wait_for_port(child, port)
        admin = AIOKafkaAdminClient(bootstrap_servers=self.broker)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        finally:
            await admin.close()
        await anyio.to_thread.run_sync(create_tables, self.clickhouse_url)


def create_tables(url: str, database: str = "default") -> None:
    """Make a database and the demo's tables in it, where they are not there yet."""
    with clickhouse_connect.get_client(dsn=url) as client:
        client.command(f"CREATE DATABASE IF NOT EXISTS {database}")
    with clickhouse_connect.get_client(dsn=f"{url}/{database}") as client:
        for statement in _TABLES.read_text().split(";"):
            if statement.strip():
                client.command(statement)
