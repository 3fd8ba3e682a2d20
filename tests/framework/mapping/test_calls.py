"""The options of calls: their limits, the lengths of pauses, and the rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kmr.errors import StrategyError
from kmr.mapping.calls import CallOptions, RateLimit, Retries
from kmr.mapping.functions import map_record

if TYPE_CHECKING:
    from kmr.record import Record


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency must be at least 1, not 0"),
        ({"retry": 3}, "retry must be Retries"),
        ({"rate_limit": 0}, "rate_limit must be above 0"),
        ({"timeout": 1.0}, "timeout=1 needs an async function"),
    ],
)
def test_an_option_that_cannot_be_is_refused_where_it_is_written(
    options: dict[str, Any], message: str
) -> None:
    def plain(record: Record) -> None: ...

    with pytest.raises(StrategyError, match=message):
        map_record(**options)(plain)


@pytest.mark.parametrize("wrong", [{"on": ()}, {"on": 3}, {"on": OSError, "attempts": 0}])
def test_retries_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((StrategyError, TypeError)):
        Retries(**wrong)


def test_pauses_double_up_to_the_longest_one() -> None:
    retries = Retries(on=[OSError, ValueError], attempts=99, backoff=1.0, max_backoff=5.0)
    for attempts, longest in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (90, 5.0)):
        assert longest / 2 <= retries.pause(attempts) <= longest
    assert retries.repeats(ValueError(), 98)
    assert not retries.repeats(ValueError(), 99)
    assert not retries.repeats(KeyError(), 1)


def test_a_rate_gives_each_call_a_place_and_makes_up_for_a_tenth_of_a_second() -> None:
    limit = RateLimit(100.0)
    waits = [limit.reserve() for _ in range(51)]
    assert waits[:10] == [0.0] * 10
    assert 0.2 < waits[-1] <= 0.4


def test_the_options_are_described_in_words() -> None:
    assert CallOptions().describe() == ""
    described = CallOptions(64, Retries(OSError), 0.5, 100.0).describe()
    assert described == (
        "64 at a time, at most 0.5 s each, at most 5 attempts, at most 100 calls a second"
    )
