"""The progress of the engine's query: its metrics, and the gate of its micro-batches."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from pyspark.sql.streaming.listener import StreamingQueryListener

from ..offsets import read_offsets

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

    from ...observe.metrics import Metrics

_log = structlog.get_logger(__name__)


class MicroBatchGate:
    """Lets micro-batches begin until the engine stops, and tells when one is running.

    Thread-safe: the query's thread, the listener's and the main one use it.

    Attributes:
        number: the newest micro-batch, -1 before the first.
        stopping: no further micro-batch may begin.
    """

    def __init__(self) -> None:
        self.number = -1
        self.stopping = False
        self._busy = False
        self._busy_since = 0.0
        self._changed = threading.Condition()

    @property
    def busy_since(self) -> float | None:
        """Start time of the running micro-batch (`time.monotonic`); None between two."""
        return self._busy_since if self._busy else None

    def begin(self, number: int) -> bool:
        """Begin a micro-batch; return False if it must not run, because the engine is stopping."""
        with self._changed:
            if self.stopping:
                return False
            self.number, self._busy = number, True
            self._busy_since = time.monotonic()
            return True

    def complete(self, number: int) -> None:
        """Note that the checkpoint has a micro-batch."""
        with self._changed:
            if number >= self.number:
                self._busy = False
            self._changed.notify_all()

    def end_query(self) -> None:
        """Note that the query has ended."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()

    def stop(self) -> None:
        """Let no further micro-batch begin."""
        with self._changed:
            self.stopping = True

    def wait_idle(self, deadline: float) -> bool:
        """Wait until no micro-batch runs; return False if one still runs at the deadline."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._busy, max(0.0, deadline - time.monotonic())
            )


class ProgressListener(StreamingQueryListener):
    """Updates the metrics of a worker from Spark's events."""

    def __init__(self, metrics: Metrics, gate: MicroBatchGate) -> None:
        self._metrics = metrics
        self._gate = gate
        self._counted = -1
        self._lock = threading.Lock()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's names
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Observe a micro-batch that the checkpoint has."""
        self.observe(event.progress)

    def observe(self, progress: StreamingQueryProgress) -> None:
        """Update metrics from a complete micro-batch; may be called again with the same one."""
        self._gate.complete(progress.batchId)
        with self._lock:
            if progress.batchId > self._counted:
                self._metrics.commits.labels("checkpoint").inc()
                self._counted = progress.batchId
        latest = read_offsets(_offsets(progress.sources[0].latestOffset))
        for partition, offset in read_offsets(source_end(progress)).items():
            if partition in latest:
                lag = self._metrics.lag.labels(partition.topic, str(partition.partition))
                lag.set(max(0, latest[partition] - offset))
        _log.debug(
            "micro-batch complete",
            number=progress.batchId,
            rows=progress.numInputRows,
            milliseconds=dict(progress.durationMs),
        )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: the lag has not changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing: the engine waits for the query itself."""


def source_end(progress: StreamingQueryProgress) -> dict[str, Any]:
    """Return the end offsets of the query's only source, as the checkpoint stores them."""
    return _offsets(progress.sources[0].endOffset)


def _offsets(text: str | None) -> dict[str, Any]:
    if text is None or not text.startswith("{"):  # Spark writes "null" until it knows them
        return {}
    found: dict[str, Any] = msgspec.json.decode(text)
    return found
