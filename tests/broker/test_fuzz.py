"""A small storm, some damaged files and a failing disk; `tests/broker/fuzzing.py` has larger ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import structlog

from tests.broker.fuzzing import Fuzzer, Storm, damage, failing_disk, storm

if TYPE_CHECKING:
    from pathlib import Path

    from tests.broker.conftest import Start
    from tests.broker.loop_guard import LoopGuard


@pytest.fixture(autouse=True)
def _quiet() -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_request_ends_the_broker_or_loses_an_honest_record(
    tmp_path: Path, seed: int
) -> None:
    assert await storm(tmp_path / "data", seed, 1_500) == []


@pytest.mark.loop_guard(milliseconds=50)
async def test_no_request_blocks_the_event_loop(start: Start, loop_guard: LoopGuard) -> None:
    broker = await start(
        compaction_check_interval=0.05,
        group_min_session_timeout=0.02,
        group_max_session_timeout=0.1,
    )
    storm = Storm(broker, Fuzzer(4))
    await storm.create_topics()
    await storm.run(1_500)  # imports the messages of all APIs
    loop_guard.violations.clear()
    await storm.run(1_500)


async def test_damaged_files_are_recovered_or_refused_with_a_reason(tmp_path: Path) -> None:
    intact = tmp_path / "data"
    assert await storm(intact, 3, 200) == []
    for seed in range(15):
        assert await damage(intact, tmp_path, seed) == []


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_disk_that_fails_at_any_call_loses_nothing_acknowledged(
    tmp_path: Path, seed: int
) -> None:
    assert await failing_disk(tmp_path / "data", seed, 30) == []
