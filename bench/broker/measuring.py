"""One workload on one server: the clients' work, and its cost for the server."""

from __future__ import annotations

import statistics
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.broker.gang import Client, run_together
from kmr.service.process import processor_limit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from bench.broker.gang import Outcome
    from bench.broker.servers import Server

RAW, LIBRDKAFKA = "bench.broker.raw", "bench.broker.librdkafka"


@dataclass(frozen=True)
class Figure:
    """What one run gave.

    Attributes:
        records: how many went through, each counted once.
        seconds: from the start that all clients share to the last one's end.
        cpu: processor time of the server meanwhile, in seconds.
        clients_cpu: that of the clients.
        waits: of each request, in seconds, where that was measured.
    """

    records: int
    seconds: float
    cpu: float
    clients_cpu: float = 0.0
    waits: Sequence[float] = ()

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds

    @property
    def server_us(self) -> float:
        """Processor time of the server for a record, in microseconds."""
        return self.cpu / self.records * 1e6

    @property
    def server_share(self) -> float:
        """The server's share of the processors, from 0 to 1."""
        return self.cpu / self.seconds / processor_limit()

    @property
    def busy_share(self) -> float:
        """The share that server and clients have together; the rest was idle, or other work."""
        return (self.cpu + self.clients_cpu) / self.seconds / processor_limit()

    def wait_us(self, percentile: float) -> float:
        """What so many percent of the requests took at most, in microseconds."""
        return float(np.percentile(np.array(self.waits), percentile)) * 1e6


@dataclass
class Figures:
    """Every run of every workload on every server."""

    _runs: defaultdict[tuple[str, str], list[Figure]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, workload: str, server: Server, figure: Figure) -> None:
        """One more run."""
        self._runs[workload, server.name].append(figure)

    def median(self, workload: str, server: str, what: Callable[[Figure], float]) -> float | None:
        """The median over the runs; None where there are none."""
        runs = self._runs.get((workload, server))
        return statistics.median(map(what, runs)) if runs else None

    @property
    def workloads(self) -> list[str]:
        """In the order in which they were first run."""
        return list(dict.fromkeys(workload for workload, _ in self._runs))

    @property
    def servers(self) -> list[str]:
        """In the order in which they were first measured."""
        return list(dict.fromkeys(server for _, server in self._runs))


async def run(server: Server, clients: Sequence[Client]) -> Figure:
    """Run clients together. Records that are produced and consumed count once."""
    cpu = server.cpu
    outcome = await run_together(clients)
    return Figure(
        records=_records(clients, outcome),
        seconds=outcome.seconds,
        cpu=server.cpu - cpu,
        clients_cpu=outcome.cpu,
        waits=[each for result in outcome.results for each in result.get("seconds", ())],
    )


def raw(role: str, server: Server, **arguments: Any) -> Client:
    """A client on the protocol itself."""
    return Client(RAW, {"role": role, "address": server.address, **arguments})


def librdkafka(role: str, server: Server, **arguments: Any) -> Client:
    """A client on librdkafka."""
    return Client(LIBRDKAFKA, {"role": role, "address": server.address, **arguments})


def fresh_topic(server: Server, partitions: int) -> str:
    """A new topic."""
    topic = f"bench-{uuid.uuid4().hex}"
    server.create(topic, partitions)
    return topic


async def in_turn(
    servers: Iterable[Server], rounds: int, each: Callable[[Server], Awaitable[None]]
) -> None:
    """Each server once a round: what else the machine does meets all of them."""
    for _ in range(rounds):
        for server in servers:
            await each(server)


def _records(clients: Sequence[Client], outcome: Outcome) -> int:
    counted: defaultdict[str, int] = defaultdict(int)
    for client, result in zip(clients, outcome.results, strict=True):
        counted[client.arguments["role"]] += result["records"]
    return min(counted.values())
