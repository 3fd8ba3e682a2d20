"""The code of the README runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kmr import Batcher, Json, Strategy
from kmr.record import Record
from kmr.testing import Journal, MemoryConsumer, MemoryWriter

from ..workers import P0, committed, put, running
from . import readme_example
from .readme_example import Delay, Flight, parse

README = Path(__file__).parents[3] / "README.md"


def strategy_of_the_readme() -> str:
    _, _, rest = README.read_text().partition("```python\n# flights.py\n")
    code, _, _ = rest.partition("```")
    return code


def test_the_strategy_of_the_readme_is_valid(tmp_path: Path) -> None:
    (tmp_path / "flights.py").write_text(strategy_of_the_readme())
    kmr = str(Path(sys.executable).with_name("kmr"))
    command = [kmr, "validate", "flights:strategy", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_the_strategy_of_the_readme_is_checked_by_mypy() -> None:
    copy = Path(readme_example.__file__).read_text(encoding="utf-8")
    assert copy.partition('"""\n\n')[2] == strategy_of_the_readme()


def test_the_map_of_the_readme_does_what_it_says() -> None:
    record = Record("flights", 1, 7, None, b"", 0, 0)
    assert parse(Flight("UA", 2), record) == Delay("UA", 2, 1, 7)
    assert parse(Flight("UA"), record) is None


@pytest.mark.parametrize("alone", [True, False], ids=["in a batch of its own", "in one batch"])
async def test_one_bad_value_does_not_fail_the_flights_around_it(alone: bool) -> None:
    flights = [
        json.dumps({"carrier": "UA", "dep_delay": delay}).encode()
        for delay in ("bad", 1, 2.5, None, 3)
    ]
    written, failed = Journal(), Journal()
    strategy = Strategy(
        value=Json(Flight),
        map=parse,
        reduce=[Batcher(max_age=0.2), MemoryWriter(written, max_age=0.2)],
        reduce_err=MemoryWriter(failed, max_age=0.2),
    )
    consumer = MemoryConsumer()
    async with running(strategy, consumer):
        await consumer.rebalance([P0])
        if alone:
            put(consumer, 0, 0, flights[0])
            put(consumer, 0, 1, *flights[1:])
        else:
            put(consumer, 0, 0, *flights)
        await written.until(lambda journal: journal.count == 3)
        await failed.until(lambda journal: journal.count == 1)
    assert [row["delay"] for row in written.rows()] == [1.0, 2.5, 3.0]
    (row,) = failed.rows()
    assert (row["offset"], row["value"]) == (0, flights[0])
    assert row["reason"] == "field dep_delay: expected float | null, got str"
    assert committed(consumer) == {P0: 5}
