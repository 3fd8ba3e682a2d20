"""What a supervisor and its workers tell each other, over a socket pair: one JSON object a line."""

from __future__ import annotations

import msgspec

from ..observe.status import WorkerStatus  # noqa: TC001  msgspec reads the annotation


class Job(msgspec.Struct, frozen=True, tag="job"):
    """The first message to a worker: what to run. The worker reads file and environment itself.

    Attributes:
        index: of the worker, from 0.
        strategy: `module:attribute`; None if file or environment name it.
        config: the TOML file.
        flags: settings by dotted name, those of the command line and those that the supervisor decides.
        leaves: whether the worker leaves the group when it ends, unless it is told to stay.
    """

    index: int
    strategy: str | None
    config: str | None
    flags: dict[str, object]
    leaves: bool


class Admit(msgspec.Struct, frozen=True, tag="admit"):
    """The worker may join the group."""


class Stay(msgspec.Struct, frozen=True, tag="stay"):
    """The worker does not leave the group when it ends: another takes its place."""


class Served(msgspec.Struct, frozen=True, tag="served"):
    """The answer to `Serve`: the URL, or why it cannot be served."""

    url: str | None
    problem: str = ""


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Ask for a `Report`; with `metrics` also for those."""

    number: int
    metrics: bool


class Reports(msgspec.Struct, frozen=True, tag="reports"):
    """The worker answers `Ask` from now on."""


class MetricFamily(msgspec.Struct, frozen=True, array_like=True):
    """A metric with its samples: name, labels, and value as text, because JSON has no infinity."""

    name: str
    documentation: str
    type: str
    samples: tuple[tuple[str, dict[str, str], str], ...]


class Report(msgspec.Struct, frozen=True, tag="report"):
    """The answer to the `Ask` of this number. An event loop that stands still sends none."""

    number: int
    status: WorkerStatus
    metrics: tuple[MetricFamily, ...] = ()


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """The worker has done what takes long, and waits for `Admit`."""


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """The worker has joined the group and processes its partitions."""


class Left(msgspec.Struct, frozen=True, tag="left"):
    """The worker has drained and uses the group no more: another may take its place."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The worker has drained and ends with exit code 0; user code that ends the process does not say so."""


class WorkerFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The worker ends, with this error."""

    reason: str


class Serve(msgspec.Struct, frozen=True, tag="serve"):
    """Serve the ClickHouse directory, which only one process can open."""

    path: str


FromSupervisor = Job | Admit | Stay | Served | Ask
FromWorker = Reports | Report | Prepared | Joined | Left | Done | WorkerFailed | Serve

decode_from_supervisor = msgspec.json.Decoder(FromSupervisor).decode
"""Return the message of a line to a worker."""

decode_from_worker = msgspec.json.Decoder(FromWorker).decode
"""Return the message of a line from a worker."""


def encode(message: FromSupervisor | FromWorker) -> bytes:
    """Return the line of a message."""
    return msgspec.json.encode(message) + b"\n"
