"""The documentation site builds without a warning: no broken link, no page that is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="the group docs is not installed")

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_builds_and_has_every_page_and_every_public_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "KMR_SITE_WHOLE": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    listed = set(re.findall(r"\]\(([\w/-]+\.md)\)", (tmp_path / "llms.txt").read_text()))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= listed
    full = (tmp_path / "llms-full.txt").read_text()
    for title in ("# kafka-map-reduce", "# Settings", "# Commands", "# Exit codes and errors"):
        assert f"{title}\n" in full
    api = (tmp_path / "reference" / "api" / "index.html").read_text()
    for name in ("Strategy", "ClickHouseWriter", "run_strategy", "Broker", "DeadlineExceeded"):
        assert re.search(rf'<h3[^>]* id="kmr\.[\w.]*\b{name}"', api), name
    for page in tmp_path.rglob("index.html"):
        for text in re.findall(r"<p>(.*?)</p>", page.read_text(), re.DOTALL):
            # A block inside a list is indented by four more, else Markdown of Python makes text of it.
            assert not re.search(r"(?m)^\s*(- |\d+\. |kmr |```)", text), f"{page.parent}: {text}"
