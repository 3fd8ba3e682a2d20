"""Lanes: which deliveries share one, and what each partition's own lane is given."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from kmr.commit import Committer
from kmr.delivery.error_limit import LimitWindow
from kmr.delivery.failures import ErrorPort
from kmr.delivery.ledger import Ledgers
from kmr.errors import StrategyError
from kmr.intake.backpressure import Budget, Gate
from kmr.lanes import Lanes
from kmr.observe.metrics import Metrics
from kmr.parts import SharedParts
from kmr.reducers.reducer import Context
from kmr.reducers.sink import Capabilities
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter

from .workers import P0, P1, locate


class Recognising(MemoryWriter):
    """Claims exactly once until it is opened; then it may have found that its table cannot."""

    capabilities = Capabilities(delivery="exactly-once")

    def __init__(self, *, able: bool = True) -> None:
        super().__init__(Journal())
        self.able = able
        self.contexts: list[Context] = []

    async def open(self, context: Context) -> None:
        self.contexts.append(context)
        if not self.able:
            self.capabilities = Capabilities()


def lanes_of(strategy: Strategy) -> Lanes:
    metrics, ledgers = Metrics(), Ledgers()
    gate = Gate()
    gate.open()
    shared = SharedParts(
        ledgers,
        gate,
        Budget(1_000_000),
        metrics,
        on_failure=lambda _: None,
    )
    errors = ErrorPort(None, LimitWindow(None), ledgers.settle, metrics)
    committer = Committer(
        MemoryConsumer(),
        ledgers,
        delivery=strategy.requested_delivery,
        interval=1.0,
        metrics=metrics,
    )
    return Lanes(strategy, shared, errors, 4, committer=committer, awaiting_errors=lambda _: None)


CONTEXT = Context("g", "")


def names(lanes: Lanes) -> list[str]:
    return [stage.status(anyio.current_time()).name for stage in lanes.stages]


async def test_at_least_once_shares_one_lane() -> None:
    lanes = lanes_of(
        Strategy(locate, [MemoryWriter(Journal(), forward=True), MemoryWriter(Journal())])
    )
    await lanes.open(CONTEXT)
    async with anyio.create_task_group() as tasks:
        lanes.run(tasks)
        for partition in (P0, P1):
            lanes.start(tasks, partition, None).close()
        assert names(lanes) == ["reduce-1", "reduce-2"]
        lanes.finish()  # the maps have closed their ends: all stages end
    assert lanes.delivery == "at-least-once"
    await lanes.close()


@pytest.mark.parametrize("delivery", ["exactly-once", "at-most-once"])
async def test_other_deliveries_have_a_lane_for_each_partition(delivery: Any) -> None:
    writer = Recognising()
    lanes = lanes_of(Strategy(locate, [writer], delivery=delivery))
    await lanes.open(CONTEXT)
    async with anyio.create_task_group() as tasks:
        lanes.run(tasks)
        assert names(lanes) == []
        inbox = lanes.start(tasks, P0, None)
        lanes.start(tasks, P1, None)
        assert names(lanes) == ["reduce-1 t-0", "reduce-1 t-1"]
        lanes.stop(P1)
        assert names(lanes) == ["reduce-1 t-0"]
        lanes.finish()
        inbox.close()  # as the map of the partition does when it ends
    assert lanes.delivery == delivery
    await lanes.close()


async def test_a_sink_that_turns_out_to_be_unable_is_refused_only_if_exactly_once_is_demanded() -> (
    None
):
    demanded = lanes_of(Strategy(locate, [Recognising(able=False)], delivery="exactly-once"))
    with pytest.raises(StrategyError, match="Recognising cannot provide it as it is configured"):
        await demanded.open(CONTEXT)
    offered = lanes_of(Strategy(locate, [Recognising(able=False)]))
    await offered.open(CONTEXT)
    assert offered.delivery == "at-least-once"
