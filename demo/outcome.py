"""What the demo runs, how far it is, and how the engines fared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import aiohttp
import msgspec

from kmr.observe.status import WorkerStatus

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["GROUP", "STRATEGY", "Cut", "Outcome", "Standing", "fetch_status", "history_flags"]

STRATEGY: Final = "demo.pipeline:strategy"
"""What both engines run, unchanged."""
GROUP: Final = "demo"
"""The group of the present; that of the history is named after it."""

Cut: TypeAlias = Mapping[int, int]
"""The offset of each partition at which the history ends and the present begins."""


@dataclass
class Standing:
    """How far everything is: the parts of the demo write it, the display shows it.

    Attributes:
        produced: records that the broker has acknowledged.
        history, present: rows in the table, below the cut and from it on.
        phase: what the reader of the history does.
        workers: the newest status of each worker of the present; None while it does not answer.
    """

    produced: int = 0
    history: int = 0
    present: int = 0
    phase: str = ""
    workers: dict[str, WorkerStatus | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How an engine fared with its part of the topic.

    Attributes:
        part: `history` or `present`.
        engine: what read it.
        group: its consumer group.
        start: seconds from the start of its processes until it was ready for the first record.
        seconds: from then until the last record was in the table.
        problem: why it has not delivered everything.
    """

    part: str
    engine: str
    group: str
    start: float
    seconds: float
    problem: str | None = None


def history_flags(checkpoint: Path, *, spark: bool) -> tuple[str, ...]:
    """The flags of `kmr backfill` that say what reads the history."""
    if not spark:
        return ()
    return ("--engine", "spark", "--master", "local[2]", "--checkpoint", str(checkpoint))


async def fetch_status(session: aiohttp.ClientSession, url: str) -> WorkerStatus | None:
    """The status of a worker or of the Spark engine; None while it does not answer."""
    try:
        async with session.get(f"{url}/status") as response:
            return msgspec.json.decode(await response.read(), type=WorkerStatus)
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
        return None
