"""The figures as tables: one line a workload, the servers side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.broker.measuring import Figures
    from bench.broker.restart import Start

SEED_RATE = 1_250_000
"""Messages per second of the seeds of this project: an in-memory toy broker in Rust, 10 producers and
10 consumers, 20,000,000 messages through 10 partitions in batches of 30."""
SEED_ROUND_TRIP_US = 26
"""The same, microseconds for one message a round trip."""


def rates(
    figures: Figures, *, size: int | None = None, of: str = "record", shares: bool = False
) -> Table:
    """Records per second (and MB/s of records of `size` bytes) and the server's CPU, and the ratio to
    the first server.

    `of`: what is counted instead, in the singular. `shares`: how busy all processors were, and how busy
    the server kept them.
    """
    table = _table("workload")
    for number, server in enumerate(figures.servers):
        table.add_column(f"{server}: {of}s/s", justify="right")
        if size is not None:
            table.add_column("MB/s", justify="right")
        table.add_column(f"CPU µs/{of}", justify="right")
        if shares:
            table.add_column("processors busy: server", justify="right")
        if number:
            table.add_column("ratio", justify="right")
    for workload in figures.workloads:
        cells: list[str] = []
        first: float | None = None
        for number, server in enumerate(figures.servers):
            rate = figures.median(workload, server, lambda figure: figure.rate)
            cpu = figures.median(workload, server, lambda figure: figure.server_us)
            cells.append(_number(rate))
            if size is not None:
                cells.append(_number(rate and rate * size / 1e6))
            cells.append("" if cpu is None else f"{cpu:.2f}")
            if shares:
                busy = figures.median(workload, server, lambda figure: figure.busy_share)
                share = figures.median(workload, server, lambda figure: figure.server_share)
                cells.append("" if busy is None else f"{busy:.0%}: {share:.0%}")
            if number:
                cells.append(f"{first / rate:.2f}" if first and rate else "")
            first = rate if number == 0 else first
        table.add_row(workload, *cells)
    return table


def waits(figures: Figures) -> Table:
    """Microseconds that requests took, and how many were answered in a second."""
    table = _table("workload")
    for server in figures.servers:
        for heading in (f"{server}: p50 µs", "p99 µs", "records/s"):
            table.add_column(heading, justify="right")
    for workload in figures.workloads:
        cells: list[str] = []
        for server in figures.servers:
            cells += [
                _number(figures.median(workload, server, lambda figure: figure.wait_us(50))),
                _number(figures.median(workload, server, lambda figure: figure.wait_us(99))),
                _number(figures.median(workload, server, lambda figure: figure.rate)),
            ]
        table.add_row(workload, *cells)
    return table


def starting(found: Sequence[Start]) -> Table:
    """Seconds and memory of each start."""
    table = _table("start after", "seconds", "peak MB")
    for each in found:
        table.add_row(each.after, f"{each.seconds:.3f}", _number(each.peak_mb))
    return table


def memory(peaks: dict[str, dict[str, float]]) -> Table:
    """Peak megabytes of each server in each part."""
    servers = list(dict.fromkeys(server for part in peaks.values() for server in part))
    table = _table("part", *servers)
    for part, found in peaks.items():
        table.add_row(part, *(_number(found.get(server)) for server in servers))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(header_style="dim")
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
