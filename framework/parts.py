"""The parts of a worker that its stages share, and the queues between stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .kafka.connection import connection_config
from .reducers.reducer import Context, SinkContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from .delivery.failures import ErrorPort
    from .delivery.ledger import Ledgers
    from .intake.backpressure import Budget, Gate
    from .mapping.executor import Executor
    from .observe.metrics import Metrics
    from .record import Batch, ReplayEnd, Rows, TopicPartition
    from .settings import Settings
    from .strategy import Strategy


def context_of(strategy: Strategy, settings: Settings) -> Context:
    """Return the surroundings of a strategy's reducers, without a stage. Raises SettingsError."""
    return Context(
        group=settings.group,
        stage="",
        bootstrap_servers=settings.bootstrap_servers,
        strategy=settings.strategy or "",
        strategy_version=strategy.version or "",
        for_sinks=SinkContext(
            client=connection_config(settings).client_options(),
            prepare=settings.prepare_table,
            schema_of=strategy.schema_of,
            tell_types=strategy.tell_types,
            has_schema_ids=strategy.has_schema_ids,
            transactional_id=settings.transactional_id,
            session_timeout=settings.session_timeout,
            takes_refused=strategy.reduce_err is not None,
        ),
    )


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts of a worker that all stages of a kind share.

    Attributes:
        gate: while it is closed, no map, or no flush, begins.
        on_failure: called with the error that ends a stage, before its streams are closed.
        is_at_end: returns whether the broker has no more records of a partition, and said so lately.
    """

    ledgers: Ledgers
    gate: Gate
    budget: Budget
    metrics: Metrics
    on_failure: Callable[[BaseException], None]
    is_at_end: Callable[[TopicPartition], bool] = lambda _partition: False


@dataclass(frozen=True, slots=True)
class MapParts:
    """The parts of a worker that all its maps share.

    Attributes:
        shared: its gate is that of the maps.
        max_records: the most records of a batch that are mapped together.
    """

    shared: SharedParts
    executor: Executor
    max_records: int


@dataclass(frozen=True, slots=True)
class MapPorts:
    """The queues of a map stage.

    Attributes:
        inbox: batches, in order of offsets.
        on_taken: called after each batch is taken from the inbox; it resumes a paused partition.
        out: the first reduce stage's inbox.
        accept: takes rows past that inbox, or returns False (`ReduceStage.accept`).
        errors: for failed records.
    """

    inbox: MemoryObjectReceiveStream[Batch]
    on_taken: Callable[[], None]
    out: MemoryObjectSendStream[Rows | ReplayEnd]
    accept: Callable[[Rows], bool]
    errors: ErrorPort


@dataclass(frozen=True, slots=True)
class ReducePorts:
    """The queues of a reduce stage.

    Attributes:
        inbox: rows to collect.
        out: the next stage's inbox; None for the last of a lane.
        errors: for records that the stage refuses; None in the error stage.
    """

    inbox: MemoryObjectReceiveStream[Rows | ReplayEnd]
    out: MemoryObjectSendStream[Rows | ReplayEnd] | None = None
    errors: ErrorPort | None = None

    def close(self) -> None:
        """Close all of them."""
        self.inbox.close()
        self.close_outputs()

    def close_outputs(self) -> None:
        """Close all but the inbox. The next stages end when their own inboxes are empty."""
        if self.out is not None:
            self.out.close()
        if self.errors is not None:
            self.errors.close()
