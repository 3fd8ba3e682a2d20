"""The code of the README runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kmr import Batcher, Json, Strategy
from kmr.testing import Journal, MemoryConsumer, MemoryWriter

from ..workers import P0, committed, put, running
from . import readme_example
from .readme_example import Order, large

README = Path(__file__).parents[3] / "README.md"


def strategy_of_the_readme() -> str:
    _, _, rest = README.read_text().partition("```python\n# orders.py\n")
    code, _, _ = rest.partition("```")
    return code


def test_the_strategy_of_the_readme_is_checked_by_mypy() -> None:
    copy = Path(readme_example.__file__).read_text(encoding="utf-8")
    assert copy.partition('"""\n\n')[2] == strategy_of_the_readme()


def test_the_map_of_the_readme_does_what_it_says() -> None:
    assert large(Order("ada", 25.0)) == Order("ada", 25.0)
    assert large(Order("bob", 7.5)) is None


@pytest.mark.parametrize("alone", [True, False], ids=["in a batch of its own", "in one batch"])
async def test_one_bad_value_does_not_fail_the_orders_around_it(alone: bool) -> None:
    orders = [
        json.dumps({"customer": "ada", "amount": amount}).encode()
        for amount in ("bad", 10, 12.5, 5, 30)
    ]
    written, failed = Journal(), Journal()
    strategy = Strategy(
        value=Json(Order),
        map=large,
        reduce=[Batcher(max_age=0.2), MemoryWriter(written, max_age=0.2)],
        reduce_err=MemoryWriter(failed, max_age=0.2),
    )
    consumer = MemoryConsumer()
    async with running(strategy, consumer):
        await consumer.rebalance([P0])
        if alone:
            put(consumer, 0, 0, orders[0])
            put(consumer, 0, 1, *orders[1:])
        else:
            put(consumer, 0, 0, *orders)
        await written.until(lambda journal: journal.count == 3)
        await failed.until(lambda journal: journal.count == 1)
    assert [row["amount"] for row in written.rows()] == [10.0, 12.5, 30.0]
    (row,) = failed.rows()
    assert (row["offset"], row["value"]) == (0, orders[0])
    assert row["reason"] == "field amount: expected float, got str: 'bad'"
    assert committed(consumer) == {P0: 5}
