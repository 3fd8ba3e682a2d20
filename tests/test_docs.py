"""The documentation names files that exist, and its examples run."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

from kmr.cli.clickhouse import create_table
from kmr.record import TopicPartition
from kmr.settings import Settings
from kmr.sinks.clickhouse.ddl import column_type
from kmr.testing import Journal, MemoryConsumer, MemoryWriter, batch_of
from kmr.worker import Worker

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("C*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PATH = re.compile(
    r"`((?:framework|broker|sql|demo|tests|bench|chaos|interop|docs|tools)/[\w./*-]+)`"
)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_of_a_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in PATH.findall(text):
        assert list(ROOT.glob(path)), f"{page.name} names {path}, which does not exist"
    for link in LINK.findall(text):
        assert (page.parent / link).exists(), f"{page.name} links to {link}, which does not exist"


def test_the_rooms_of_the_architecture_page_are_those_of_the_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for package in ("framework", "broker"):
        rooms = {
            path.name
            for path in (ROOT / package).iterdir()
            if path.is_dir() and not path.is_symlink() and (path / "__init__.py").exists()
        }
        missing = {room for room in rooms if f"`{room}/`" not in text}
        assert not missing, f"docs/architecture.md does not name {sorted(missing)} of {package}/"


def test_the_statement_for_the_table_of_the_example_is_that_of_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "clickhouse.md").read_text(encoding="utf-8")
    code, statement = (
        page.partition(f"```{language}\n")[2].partition("```")[0] for language in ("python", "sql")
    )
    (tmp_path / "hits.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    create_table("hits", stage="reduce-1")
    assert capsys.readouterr().out == statement
    types = re.findall(r"^\| `(pa\..+?)`(?:,.*)? \| `+(.+?)`+ \|$", page, re.MULTILINE)
    assert len(types) == 15
    for arrow, clickhouse in types:
        assert column_type(eval(arrow, {"pa": pa})) == clickhouse


async def test_the_example_of_slow_maps_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "slow-maps.md").read_text(encoding="utf-8")
    (tmp_path / "slow_maps.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    strategy = importlib.import_module("slow_maps").strategy
    strategy.validate()
    journal, consumer = Journal(), MemoryConsumer()
    consumer.put(batch_of("t", 0, 0, [b"x" * size for size in range(200)]))
    worker = Worker(
        dataclasses.replace(strategy, reduce=[MemoryWriter(journal, max_rows=200)]),
        Settings(topics=("t",), group="g"),
        consumer=consumer,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await consumer.started.wait()
        await consumer.rebalance([TopicPartition("t", 0)])
        await journal.until(lambda j: j.count == 200)
        worker.shutdown("the test is over")
    assert journal.rows() == [{"offset": size, "answer": size} for size in range(200)]
