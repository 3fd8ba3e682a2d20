"""The limit of failed records, and its window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kmr.delivery.error_limit import MOSTLY_FAILED, ErrorLimit, LimitWindow
from kmr.errors import StrategyError
from kmr.testing import VirtualTimeLoop

if TYPE_CHECKING:
    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


@pytest.mark.parametrize(
    ("limit", "complaint"),
    [
        ({"records": -1}, "records must be at least 0, not -1"),
        ({"records": 1, "per": 0.0}, "per must be above 0, not 0"),
        ({"records": 1, "on_limit": "wait"}, "on_limit must be .*, not 'wait'"),
        ({"records": 0, "on_limit": "pause"}, "needs records of at least 1"),
    ],
)
def test_limits_of_failures_that_do_not_work_are_refused(
    limit: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(StrategyError, match=complaint):
        ErrorLimit(**limit)


async def test_a_window_forgets_what_was_mapped_before_it_also_while_nothing_fails(
    clock: VirtualClock,
) -> None:
    window = LimitWindow(MOSTLY_FAILED)
    for _ in range(3 * 60):
        window.count_mapped(1)
        await clock.advance(1.0)
    assert len(window._mapped._added) <= MOSTLY_FAILED.seconds
    assert window._mapped.sum() <= MOSTLY_FAILED.seconds
