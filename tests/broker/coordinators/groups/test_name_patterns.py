"""Regular expressions of topics' names: the whole name matches, and no expression takes long."""

from __future__ import annotations

import random
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from kmr.broker.coordinators.groups import name_patterns
from kmr.broker.coordinators.groups.name_patterns import InvalidPattern, matching_names

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kmr.broker import Broker

CONSUMER_GROUP_HEARTBEAT = 68
SLOW = "(a|b)*a(a|b){200}c"
LETTERS = random.Random(1)
LONG = ["".join(LETTERS.choice("ab") for _ in range(249)) for _ in range(4000)]


@pytest.mark.parametrize("number", [0, 1, 5, 1000])
def test_all_names_that_match_as_a_whole_are_found(number: int) -> None:
    names = [f"orders-{at}" for at in range(number)]
    assert matching_names("orders-.*", names) == tuple(sorted(names))
    assert matching_names("orders", names) == ()


@pytest.mark.parametrize("pattern", ["(", "a)|(b", r"(a)\1"])
def test_what_re2_does_not_know_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        matching_names(pattern, ["a"])


def test_a_pattern_that_takes_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_patterns, "MOST_SECONDS", 0.2)
    began = monotonic()
    with pytest.raises(InvalidPattern, match="too long"):
        matching_names(SLOW, LONG)
    assert monotonic() - began < 30  # 7 s of processor time for all names


@pytest.mark.loop_guard(milliseconds=50)
async def test_a_pattern_that_takes_long_keeps_no_other_client_waiting(
    broker: Broker,
    connect: Callable[[Broker], Awaitable[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in LONG[:60]:
        await broker.topics.create(name, 1)
    hostile = await connect(broker)

    async def join(pattern: str) -> ErrorCode:
        answer = await hostile.call(
            CONSUMER_GROUP_HEARTBEAT,
            1,
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout=timedelta(seconds=1),
            subscribed_topic_regex=pattern,
            topic_partitions=[],
        )
        code: ErrorCode = answer.error_code
        return code

    assert await join("none") is ErrorCode.none  # messages and the library are loaded
    assert await join(SLOW) is ErrorCode.none
    monkeypatch.setattr(name_patterns, "MOST_SECONDS", 0.01)
    assert await join(SLOW) is ErrorCode.invalid_regular_expression
    assert await join("none") is ErrorCode.none
