"""Everything that stops a worker waits longer than the worker takes to end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from kmr.settings import Settings

DEPLOY: Final = Path(__file__).parents[2] / "deploy"


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("systemd/kmr-worker@.service", "TimeoutStopSec="),
        ("kubernetes/base/statefulset.yaml", "terminationGracePeriodSeconds: "),
        ("docker/compose.yaml", "stop_grace_period: "),
    ],
)
def test_the_time_to_end_is_the_same_everywhere_and_the_pages_say_it(file: str, key: str) -> None:
    text = (DEPLOY / file).read_text(encoding="utf-8")
    (stated,) = re.findall(rf"^\s*{key}(\d+)s?\b", text, re.MULTILINE)
    deadline = Settings(topics=("t",), group="g").shutdown_deadline
    assert int(stated) == deadline + 5
    page = (DEPLOY.parent / "docs" / "deployment.md").read_text(encoding="utf-8")
    assert f"`{key}{stated}" in page
