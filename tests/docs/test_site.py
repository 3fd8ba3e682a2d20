"""The documentation site builds without a warning: no broken link, no page that is missing."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest.importorskip("material", reason="the group docs is not installed")

from tools.site import _cli

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
    api = {
        page.parent.name: page.read_text() for page in (tmp_path / "reference/api").rglob("*.html")
    }
    for topic, name in {
        "strategy": "kmr.Strategy",
        "values": "kmr.Json",
        "reducers": "kmr.Aggregate",
        "databases": "kmr.sinks.ClickHouseWriter",
        "sinks": "kmr.sinks.ParquetWriter",
        "own-sinks": "kmr.sinks.RangeWriter",
        "testing": "kmr.testing.run_strategy",
        "running": "kmr.broker.Broker",
        "errors": "kmr.errors.DeadlineExceeded",
    }.items():
        assert re.search(rf'<h3[^>]* id="{re.escape(name)}"', api[topic]), name
    everything = "".join(api.values())
    for module in ("kmr", "kmr.sinks", "kmr.types", "kmr.errors", "kmr.testing", "kmr.settings"):
        for name in importlib.import_module(module).__all__:
            assert f'id="{module}.{name}"' in everything, f"{module}.{name}"
    assert api["strategy"].index('id="kmr.Strategy"') < api["strategy"].index('id="kmr.ErrorLimit"')
    commands = "|".join(group.name for group in entry_points(group="kmr.commands"))
    # A block inside a list is indented by four more, else Markdown of Python makes text of it.
    block = re.compile(rf"(?m)^\s*(- |\d+\. |kmr (?:{commands})\b|```)")
    for page in tmp_path.rglob("index.html"):
        for text in re.findall(r"<p>(.*?)</p>", page.read_text(), re.DOTALL):
            assert not block.search(text), f"{page.parent}: {text}"


def test_flags_that_many_commands_share_are_described_once() -> None:
    text = _cli()
    # Of workers, and of kmr broker.
    assert text.count("* `--security-ssl-cafile") == 2
    assert "**Security**: [Security flags](#security-flags)." in text
    assert (
        "**Connection**: [Connection flags of kmr broker](#connection-flags-of-kmr-broker)." in text
    )
    for anchor in ("security-flags", "connection-flags-of-kmr-broker"):
        title = anchor.replace("-", " ").capitalize()
        assert text.count(f"\n## {title}\n") == 1
