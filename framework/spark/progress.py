"""What Spark tells about a query: where its micro-batches stand, and how far behind it is."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from pyspark.sql.streaming.listener import StreamingQueryListener

from framework.spark.offsets import read_offsets

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

    from framework.telemetry import Metrics

__all__ = ["ProgressListener", "Turnstile", "source_end"]

_log = structlog.get_logger(__name__)


class Turnstile:
    """Whether a micro-batch is under way. Used by the query's thread, the listener's and the main one.

    Attributes:
        number: the micro-batch that began last, -1 before the first.
        stopping: no other micro-batch begins.
    """

    def __init__(self) -> None:
        self.number = -1
        self.stopping = False
        self._busy = False
        self._busy_since = 0.0
        self._changed = threading.Condition()

    @property
    def busy_since(self) -> float | None:
        """When the micro-batch under way began (`time.monotonic`); None between two."""
        return self._busy_since if self._busy else None

    def begin(self, number: int) -> bool:
        """A micro-batch is about to run; returns whether it may."""
        with self._changed:
            if self.stopping:
                return False
            self.number, self._busy = number, True
            self._busy_since = time.monotonic()
            return True

    def complete(self, number: int) -> None:
        """A micro-batch is in the checkpoint."""
        with self._changed:
            if number >= self.number:
                self._busy = False
            self._changed.notify_all()

    def over(self) -> None:
        """The query has ended."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()

    def stop(self) -> None:
        """Let no other micro-batch begin."""
        with self._changed:
            self.stopping = True

    def wait_idle(self, deadline: float) -> bool:
        """Wait until no micro-batch is under way; returns whether that was before the deadline."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._busy, max(0.0, deadline - time.monotonic())
            )


class ProgressListener(StreamingQueryListener):
    """Feeds a worker's metrics from Spark's events."""

    def __init__(self, metrics: Metrics, turnstile: Turnstile) -> None:
        self._metrics = metrics
        self._turnstile = turnstile
        self._counted = -1
        self._lock = threading.Lock()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's names
        """Nothing to count yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A micro-batch is complete, and in the checkpoint."""
        self.observe(event.progress)

    def observe(self, progress: StreamingQueryProgress) -> None:
        """Take note of a micro-batch; once is enough, more does no harm."""
        self._turnstile.complete(progress.batchId)
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
        """There is nothing new; the lag is what it was."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The engine waits for the query itself."""


def source_end(progress: StreamingQueryProgress) -> dict[str, Any]:
    """Where the only source of a query stands, as the checkpoint has it."""
    return _offsets(progress.sources[0].endOffset)


def _offsets(text: str | None) -> dict[str, Any]:
    if text is None or not text.startswith("{"):  # null, or None, while it is not known
        return {}
    found: dict[str, Any] = msgspec.json.decode(text)
    return found
