"""The pauses of a map stage for a registry: growing, logged, counted, over at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
from structlog.testing import capture_logs

from kmr.mapping.registry_wait import RegistryWait
from kmr.testing import VirtualTimeLoop
from kmr.values.registry.registry import RegistryUnavailable

if TYPE_CHECKING:
    from kmr.testing import VirtualClock


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


async def test_pauses_grow_to_ten_seconds_and_are_logged_at_first_and_each_minute(
    clock: VirtualClock,
) -> None:
    reasons: list[str] = []
    wait = RegistryWait("map t-0", reasons.append)
    ends: list[float] = []

    async def ask() -> None:
        for _ in range(12):
            await wait.pause(RegistryUnavailable("away"))
            ends.append(anyio.current_time())
        wait.over()

    with capture_logs() as logs:
        begun = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await clock.advance(0.0)
            assert wait.reason == "away"
            for _ in range(200):
                await clock.advance(0.5)
    pauses = [round(b - a, 3) for a, b in zip([begun, *ends], ends, strict=False)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0]
    assert wait.reason is None
    assert reasons == ["away"] * 12
    events = [(each["log_level"], each.get("attempts")) for each in logs]
    assert events == [("warning", 1), ("warning", 11), ("info", None)]
