"""The contract of reducers: limits and policies that are refused, and what a sink says of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kmr import Batcher, ErrorLimit, Registry
from kmr.errors import StrategyError
from kmr.reducers.sink import capabilities_of
from kmr.sinks import (
    ClickHouseWriter,
    DeadLetterWriter,
    KafkaWriter,
    PostgresWriter,
    StreamWriter,
)
from kmr.testing import Journal, MemoryWriter


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        (
            {"max_rows": None, "max_bytes": None, "max_age": None},
            "has no limit; set one of max_rows, max_bytes, max_age",
        ),
        ({"max_rows": 0}, "max_rows must be above 0, not 0"),
        ({"max_age": -1.0}, "max_age must be above 0, not -1.0"),
        ({"max_age": "0s"}, "max_age must be above 0, not '0s'"),
        ({"max_age": "4 parsecs"}, "max_age: '4 parsecs' is not a number with one of the units"),
        ({"when_full": "drop"}, "when_full must be .*, not 'drop'"),
        ({"on_error": "ignore"}, "on_error must be .*, not 'ignore'"),
        ({"when_full": "backpressure", "max_age": None}, "needs max_age"),
    ],
)
def test_limits_and_policies_that_do_not_work_are_refused(
    limits: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(StrategyError, match=f"Batcher.*{complaint}"):
        Batcher(**limits)


def test_durations_are_seconds_or_text_with_a_unit_everywhere() -> None:
    assert Batcher(max_age="4s").max_age == 4.0
    assert DeadLetterWriter("dead", max_age="2m").max_age == 120.0
    writer = PostgresWriter("hits", url="postgresql://a@b/c", timeout="1m", connect_timeout="500ms")
    assert (writer.timeout, writer.connect_timeout) == (60.0, 0.5)
    assert ClickHouseWriter("hits", timeout="1h").timeout == 3_600.0
    assert KafkaWriter("hits", open_timeout="3s", attempt_timeout=2).open_timeout == 3.0
    assert ErrorLimit(records=1, per="5m").per == 300.0
    assert Registry("http://localhost:1", timeout="2s").timeout == 2.0


def test_a_sink_that_declares_nothing_is_at_least_once_everywhere() -> None:
    able = MemoryWriter(Journal()).capabilities
    assert able.delivery == "at-least-once"
    assert not able.names_ranges
    assert not able.needs_session
    assert not able.commits_offsets
    assert able.on_spark.startswith("at least once")
    assert able.errors_on_spark == "at least once"
    assert able.difference_on_spark == ""
    assert not able.forwards
    assert capabilities_of(Batcher()) == replace(able, forwards=True), (
        "a reducer makes rows for the next"
    )


def test_a_misspelt_limit_is_an_error_of_types() -> None:
    with pytest.raises(StrategyError, match="did you mean max_rows"):
        Batcher(max_rowz=1)  # type: ignore[call-arg]
    with pytest.raises(StrategyError, match="did you mean max_rows"):
        StreamWriter("stdout", max_rowz=1)  # type: ignore[call-arg]
