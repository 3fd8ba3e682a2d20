"""The short scenarios, from the first process to the last verdict."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

import pytest

from chaos.course import carry_out
from chaos.report import summary_of, write_report
from chaos.scenarios import SHORT, Scenario

if TYPE_CHECKING:
    from pathlib import Path

SEED = 20_261_121


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SHORT, ids=lambda scenario: scenario.name)
async def test_every_guarantee_is_kept_and_every_missing_one_is_found_out(
    scenario: Scenario, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "aiokafka")  # it cannot know that we meant it
    run = await carry_out(scenario, SEED, tmp_path / "run")
    summary = write_report(run, tmp_path / "report")
    assert run.verdict == "ok", f"{summary_of(run)}\n{summary}, {tmp_path / 'run' / 'logs'}"
    assert run.found == scenario.finds
    assert run.history.events.num_rows >= 2 * len(scenario.faults)
    shutil.rmtree(tmp_path / "run")  # tens of megabytes
