"""The source with the strategy inside travels to processes that import neither."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from kmr import Strategy, map_record
from kmr.kafka.subscription import Subscription
from kmr.reducers.reducer import Context
from kmr.sinks import StreamWriter
from kmr.spark.engine.strategy_source import REPORT_SCHEMA, TaskPlan, strategy_source
from kmr.spark.source_settings import ClientConfig, SourceSettings


@map_record
def keep(record: Any) -> dict[str, Any]:
    return {"value": record.value}


def test_a_plan_and_its_source_are_pickled_by_value() -> None:
    context = Context(group="g", stage="")
    plan = TaskPlan.of(Strategy(keep, [StreamWriter("stdout")]), context)
    strategy, found = cloudpickle.loads(plan.payload)
    assert found == context
    assert isinstance(strategy.reducers[0], StreamWriter)
    settings = SourceSettings(
        subscription=Subscription(("t",)), client=ClientConfig(bootstrap_servers="k:1"), group="g"
    )
    sent: Any = cloudpickle.dumps(strategy_source("kmr-test", plan, settings))  # type: ignore[no-untyped-call]
    source = cloudpickle.loads(sent)
    assert source.name() == "kmr-test"
    assert source({}).schema() == REPORT_SCHEMA
