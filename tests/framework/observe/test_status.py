"""The lag of a partition's status."""

from __future__ import annotations

from typing import Any

import pytest

from kmr.observe.status import PartitionStatus


def status(**known: Any) -> PartitionStatus:
    unknown: dict[str, Any] = dict.fromkeys(("watermark", "committed", "position", "start", "end"))
    return PartitionStatus(topic="t", partition=0, paused=False, **(unknown | known))


@pytest.mark.parametrize(
    ("known", "lag"),
    [
        ({"watermark": 5, "end": 12}, 7),
        ({"watermark": 5, "end": 12, "start": 10}, 2),  # retention removed 5 to 9
        ({"watermark": 12, "end": 12}, 0),
        ({"watermark": 5}, None),
        ({"end": 12}, None),
    ],
)
def test_the_lag_counts_the_records_that_are_there(known: dict[str, int], lag: int | None) -> None:
    assert status(**known).lag == lag
