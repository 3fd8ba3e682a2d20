"""The broker and the embedded ClickHouse of a bench, as processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kmr.chaos.services import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from demo.processes import Children


class Servers(NamedTuple):
    """Where they listen: `host:port` of the broker, the URL of ClickHouse."""

    broker: str
    clickhouse: str


async def start_servers(children: Children, directory: Path, partitions: int) -> Servers:
    """Start both with their data in a directory. `partitions`: of new topics."""
    ports = free_port(), free_port()
    broker = await children.start(
        *("broker", "broker", "serve", "--data", str(directory / "broker")),
        *("--port", str(ports[0]), "--partitions", str(partitions)),
    )
    clickhouse = await children.start(
        *("clickhouse", "clickhouse", "serve", "--data", str(directory / "clickhouse")),
        *("--port", str(ports[1])),
    )
    await children.wait_for_port(broker, ports[0])
    await children.wait_for_port(clickhouse, ports[1])
    return Servers(f"127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}")
