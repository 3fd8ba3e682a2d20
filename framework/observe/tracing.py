"""What a stage tells of each batch and each flush, for traces. Off, which is the default, it tells nothing.

`kmr.observe.otel` makes spans of it, and is imported only then.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Final, Protocol

from .._extras import require_extra

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from ..mapping.results import MapResult
    from ..record import Batch, Rows
    from ..reducers.buffer import FlushReason
    from ..settings import Settings
    from .metrics import Metrics


class MapSpan(Protocol):
    """The span of a batch that is being mapped."""

    async def mapped(self, result: MapResult) -> None:
        """Note the outcome. Without it, as when the map is cancelled, there is no span."""


class FlushSpan(Protocol):
    """The span of a flush, with all its attempts."""

    def retried(self, reason: str) -> None:
        """Note that an attempt failed and will be repeated."""

    async def flushed(self) -> None:
        """Note that the flush is done. Without it, as when the partitions are lost, there is no span."""


class Tracing(Protocol):
    """Makes the spans. Inside a block its span is the current one, also in the thread of a map."""

    def mapping(self, batch: Batch) -> AbstractAsyncContextManager[MapSpan | None]:
        """Begin the span of a batch; an exception ends it as an error."""

    def flushing(
        self, stage: str, reason: FlushReason, rows: Sequence[Rows]
    ) -> AbstractAsyncContextManager[FlushSpan | None]:
        """Begin the span of a flush of these rows; an exception ends it as an error."""


class _Off:
    _nothing: Final = nullcontext(None)

    def mapping(self, batch: Batch) -> AbstractAsyncContextManager[None]:
        return self._nothing

    def flushing(
        self,
        stage: str,
        reason: FlushReason,
        rows: Sequence[Rows],
    ) -> AbstractAsyncContextManager[None]:
        return self._nothing


OFF: Final[Tracing] = _Off()
"""No traces."""


@asynccontextmanager
async def telemetry(settings: Settings, metrics: Metrics) -> AsyncIterator[None]:
    """Export metrics by OTLP inside the block, and the spans of `metrics.tracing`, if `settings.otel` is set.

    Raises:
        MissingExtra: OpenTelemetry is not installed.
        SettingsError: a variable of OpenTelemetry has a value that is not supported.
    """
    if not settings.otel:
        yield
        return
    require_extra("otel", "--otel")
    from .otel import Telemetry

    async with Telemetry(settings, metrics.registry) as running:
        metrics.tracing = running.tracing
        yield
