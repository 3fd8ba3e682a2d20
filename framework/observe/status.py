"""The status of a worker at one moment: for `/live`, `/ready`, `/status`, the page and `kmr top`."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..config.schema import show_count
from .failures import FailureSummary  # noqa: TC001  msgspec reads the annotation

WorkerState = Literal["starting", "running", "suspended", "draining", "stopped", "failed"]


class StageStatus(msgspec.Struct, frozen=True):
    """One stage.

    Attributes:
        name: `map topic-0`, `reduce-1` or, where each partition has its own, `reduce-1 topic-0`,
            `reduce-err`. A branch that has not written its part of a flush: `reduce-1 PageView topic-0`.
        activity: its present activity; `waiting` has work in hand and waits for the next stage, for room or
            for a thread, `held` for the end of a rebalance.
        queued: batches in its inbox.
        rows: rows collected and not yet flushed.
        bytes: their size.
        seconds: how long `activity` has lasted.
        reason: why it retries; None if it does not.
        working: how long the present call of the map function, or attempt to flush, has lasted; 0 without.
        waits_for: what it waits for, in words; None if it waits for nothing but more work.
        waited: for how long.
        branch: the branch that it is; empty for a whole stage, whose figures have those of its branches.
    """

    name: str
    activity: Literal["idle", "mapping", "waiting", "collecting", "flushing", "retrying", "held"]
    queued: int
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    reason: str | None = None
    working: float = 0.0
    waits_for: str | None = None
    waited: float = 0.0
    branch: str = ""

    @property
    def why(self) -> str:
        """Why it retries, or what it waits for, in words; empty without either."""
        waits = "" if self.waits_for is None else f"waits for {self.waits_for}"
        return self.reason or waits


class PartitionStatus(msgspec.Struct, frozen=True):
    """One assigned partition.

    Attributes:
        watermark: the lowest offset that is not settled.
        committed: the watermark that the broker has acknowledged.
        position: the next offset to read.
        start: the log start offset: the first one that the broker still has.
        end: the high watermark: the offset after the last record.
        paused: whether intake waits for the map stage.
        held: offsets from the watermark on that open windows hold; they are no lag.
    """

    topic: str
    partition: int
    watermark: int | None
    committed: int | None
    position: int | None
    start: int | None
    end: int | None
    paused: bool
    held: int = 0

    @property
    def lag(self) -> int | None:
        """Records between the watermark, or what open windows hold from there on, and the partition's end."""
        if self.end is None or self.watermark is None:
            return None
        return max(0, self.end - max(self.watermark + self.held, self.start or 0))


class TableStatus(msgspec.Struct, frozen=True):
    """One look-up table.

    Attributes:
        source: the topic or the query that it follows.
        read: offsets of the topic that its first load has read; 0 for a query.
        of: how many there are to read; None as long as that is not known, and for a query.
        stale: seconds since it was known to be up to date; None before it is loaded.
        problem: why it is not kept up to date; None if it is.
    """

    name: str
    source: str
    rows: int
    is_loaded: bool
    stale: float | None
    read: int = 0
    of: int | None = None
    problem: str | None = None

    @property
    def progress(self) -> str:
        """How far its first load is, in words."""
        return "begun" if self.of is None else f"{self.read:,} of {self.of:,} records"

    def __str__(self) -> str:
        """Why it is not loaded, or not up to date; else its size."""
        if self.is_loaded:
            return f"table {self.name}: {self.problem or show_count(self.rows, 'row')}"
        return f"loading table {self.name}: {self.progress}"


class BackfillPartition(msgspec.Struct, frozen=True):
    """One partition's history.

    Attributes:
        offsets: how many it has.
        done: how many of them are read, and written.
    """

    topic: str
    partition: int
    offsets: int
    done: int


class BackfillStatus(msgspec.Struct, frozen=True):
    """The backfill beside the worker (`kmr backfill`), of all partitions of the topic.

    Attributes:
        group: that reads it.
        offsets: how many the history has.
        done: how many of them are read, and written.
        rate: offsets a second in the last minute.
        seconds_left: at this rate; None while nothing moves.
    """

    group: str
    offsets: int
    done: int
    rate: float
    seconds_left: float | None
    partitions: tuple[BackfillPartition, ...]


class WorkerSummary(msgspec.Struct, frozen=True):
    """One of several workers of one command.

    Attributes:
        index: from 0.
        pid: of its process; None while it has none.
        problem: why it is not live, why it has no process, or the reason of a stage that retries.
        restarts: how often it was started again after it had ended by itself.
        partitions: how many it has.
    """

    index: int
    pid: int | None
    state: WorkerState
    live: bool
    ready: bool
    problem: str | None
    restarts: int
    partitions: int
    consumed: int
    settled: int
    inflight_bytes: int
    uptime: float


class WorkerStatus(msgspec.Struct, frozen=True):
    """The whole worker; or several workers of one command, as if they were one.

    Attributes:
        live: False if it failed, or if a stage or a partition hangs (`kmr.observe.liveness`).
        ready: True if it can process partitions: all reducers are open, and it had its first assignment.
        problem: why it is not live, or the reason of a stage that retries; None without either.
        consumed: records taken from the broker since the start.
        settled: offsets settled since the start.
        uptime: seconds.
        workers: each of several; empty if there is only one.
        failed: records that failed since the start.
        repeated: attempts to decode and to flush, and commits, that failed since the start and were
            repeated.
        failures: the latest ones, with their reasons.
        tables: the look-up tables.
        backfill: the backfill beside it; None without one.
        letters: the topic that a `DeadLetterWriter` writes failed records to; None without one.
    """

    state: WorkerState
    live: bool
    ready: bool
    problem: str | None
    group: str
    topics: tuple[str, ...]
    stages: tuple[StageStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    inflight_bytes: int
    inflight_limit: int
    consumed: int
    settled: int
    uptime: float
    workers: tuple[WorkerSummary, ...] = ()
    failed: int = 0
    repeated: int = 0
    failures: tuple[FailureSummary, ...] = ()
    letters: str | None = None
    tables: tuple[TableStatus, ...] = ()
    backfill: BackfillStatus | None = None


def read_status(url: str, timeout: float) -> WorkerStatus:
    """Ask the worker at an address for its status.

    Raises:
        OSError: nobody answers within `timeout` seconds, or not with 200 (`urllib.error.HTTPError`).
        http.client.HTTPException: the answer is no HTTP.
        msgspec.DecodeError: the answer is no status of this version.
    """
    from urllib.request import urlopen  # no worker needs it

    with urlopen(f"{url}/status", timeout=timeout) as response:  # noqa: S310
        return msgspec.json.decode(response.read(), type=WorkerStatus)
