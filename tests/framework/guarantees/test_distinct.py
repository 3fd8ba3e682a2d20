"""`Distinct` in real processes: duplicates are dropped exactly, through kills of each of them."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from anyio import to_thread
from structlog.testing import capture_logs

from kmr import Distinct, Strategy, map_record
from kmr.chaos.records import read_lines
from kmr.chaos.storm import Storm, carry_out
from kmr.testing import Journal, MemoryWriter
from tests.framework.chaos.strategies import DISTINCT
from tests.framework.guarantees.test_exactly_once import settings_of, work_through

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.broker import Broker
    from kmr.record import Record
    from tests.framework.conftest import Produce


@map_record
def identify(record: Record) -> dict[str, Any]:
    return {"id": (record.value or b"").decode(), "o": record.offset}


def strategy_of(journal: Journal) -> Strategy:
    return Strategy(identify, [Distinct("id", "10m"), MemoryWriter(journal, max_age=0.05)])


async def test_a_worker_reads_again_from_a_broker_what_the_one_before_has_seen(
    broker: Broker, produce: Produce
) -> None:
    journal = Journal()
    await produce("t", [b"%d" % number for number in range(5000)])
    await work_through(strategy_of(journal), settings_of(broker), 5000)
    await produce("t", [b"%d" % number for number in range(4000, 6000)])
    with capture_logs() as logs:
        await work_through(strategy_of(journal), settings_of(broker), 7000)
    assert [row["id"] for row in journal.rows()] == [str(number) for number in range(6000)]
    (again,) = (line for line in logs if line["event"] == "Distinct remembers again")
    assert (again["offsets"], again["keys"]) == ("0..4999", 5000)


@pytest.mark.slow
async def test_no_duplicate_passes_and_no_row_is_lost_while_everything_is_killed(
    tmp_path: Path,
) -> None:
    orders = [{"customer": f"c{number % 300}", "amount": 1.0} for number in range(400)]
    file = tmp_path / "orders.jsonl"
    file.write_text("".join(json.dumps(order) + "\n" for order in orders))
    values = {"t": read_lines(file)}
    storm = Storm(
        "tests.framework.chaos.strategies:DISTINCT",
        values,
        workers=2,
        partitions=2,
        faults=4,
        seed=3,
    )
    said: list[str] = []
    run = partial(carry_out, storm, DISTINCT, tmp_path / "storm", said.append)
    outcome = await to_thread.run_sync(run)
    verdict = outcome.verdicts[""]
    assert outcome.ok, said
    assert (outcome.struck, verdict.lost, verdict.doubled) == (4, 0, 0)
    assert verdict.filtered > 100
    assert verdict.delivered > 100
