"""The worker's protocol through schedules of failures, and what a mistake in a strategy leads to."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest

from kmr.errors import StrategyError
from kmr.mapping.functions import map_record
from kmr.reducers.collect import Collect
from kmr.simulation.schedule import Event, Schedule, read_replay, write_replay
from kmr.simulation.simulate import Failing, Simulator, garbage_is_silent
from kmr.simulation.world import Problem
from kmr.sinks import ClickHouseWriter
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryWriter, simulate

from .strategies import RECORDS, STRATEGIES, mislead, records_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kmr.record import Record
    from kmr.simulation.schedule import How


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_guarantee_holds_through_schedules_of_failures(name: str) -> None:
    done = simulate(STRATEGIES[name](), records_of(name), schedules=10)
    assert done.schedules == 10
    assert done.seconds > 100


def print_traces(seeds: Sequence[int]) -> None:
    """Print what happens in the schedules of these seeds, in their order, with each strategy."""
    with garbage_is_silent():
        simulators = {
            name: Simulator(make(), records_of(name)) for name, make in STRATEGIES.items()
        }
        found = {
            f"{name}, seed {seed}": repr(simulator.run(simulator.generate(seed)))
            for seed in seeds
            for name, simulator in simulators.items()
        }
    print(json.dumps(found, sort_keys=True))  # noqa: T201


def test_a_schedule_follows_from_its_seed_alone_whatever_process_runs_it_and_after_what() -> None:
    runs = []
    for hash_seed, seeds in (("1", [5001, 5002]), ("2", [5002])):
        code = f"from {__name__} import print_traces; print_traces({seeds})"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    assert len(runs[0]) == 2 * len(STRATEGIES)
    assert runs[1].items() <= runs[0].items()
    assert len(runs[1]) == len(STRATEGIES)


FOUND: Final[dict[str, tuple[str, Schedule]]] = {
    "a member that slept after its announcement finds the range written by its successor": (
        "chain of ranges",
        Schedule(
            seed=172, members=2, max_rows=8, budget=0,
            events=(
                Event(10.02, "fault", target="commit", how="sleep after", seconds=40.0),
                Event(11.85, "append", 0, 1),
            ),
        ),
    ),
    "a member rejoins after its announced range was written by one that died before it committed": (
        "clickhouse",
        Schedule(
            seed=115, members=2, max_rows=5, budget=0,
            events=(
                Event(0.0, "append", 0, 1),
                Event(0.0, "append", 1, 5),
                Event(0.67, "append", 1, 1),
                Event(0.99, "append", 1, 10),
                Event(3.48, "fault", target="commit", how="sleep after", seconds=15.0),
                Event(15.44, "fault", target="sink", how="kill after", seconds=2.0),
            ),
        ),
    ),
    "ranges were written together while one of the partitions went to another member": (
        "joined into clickhouse",
        Schedule(
            seed=172, members=2, max_rows=20, budget=0, revoke=3.0,
            events=(
                Event(0.0, "append", 0, 2),
                Event(0.0, "append", 1, 1),
                Event(0.0, "drain", 1, seconds=5.0),
                Event(5.05, "append", 0, 1),
                Event(6.06, "fault", target="sink", how="slow", seconds=5.0),
                Event(9.76, "deal", 472),
            ),
        ),
    ),
    "ClickHouse dies in the first INSERT of rows that another reducer joined": (
        "batched into clickhouse",
        Schedule(
            seed=34, members=1, max_rows=20, budget=0,
            events=(
                Event(0.0, "append", 1, 1),
                Event(0.02, "fault", target="sink", how="torn", seconds=40.0),
            ),
        ),
    ),
    "at most once, a failed record lies between rows that are committed and written": (
        "at most once",
        Schedule(
            seed=38, members=2, max_rows=5, budget=0,
            events=(
                Event(3.57, "fault", target="commit", how="sleep after", seconds=40.0),
                Event(6.0, "append", 0, 5),
            ),
        ),
    ),
    "at most once, a worker that ends at its deadline holds rows that were settled before": (
        "at most once",
        Schedule(
            seed=1010, members=1, max_rows=8, budget=0,
            events=(
                Event(0.0, "append", 0, 2),
                Event(0.0, "append", 1, 3),
                Event(0.32, "append", 0, 1),
                Event(0.32, "fault", target="sink", how="sleep before", seconds=0.5),
                Event(1.07, "drain", 0, seconds=5.0),
                Event(1.18, "fault", target="commit", how="sleep after", seconds=40.0),
                Event(1.59, "fault", target="sink", how="sleep before", seconds=5.0),
                Event(2.12, "fault", target="sink", how="overtaken", seconds=40.0),
                Event(2.28, "deal", 233),
                Event(2.5, "jump", seconds=2.0),
                Event(2.65, "fault", target="commit", how="expel", seconds=5.0),
            ),
        ),
    ),
    "at most once, a refused commit had the offset that another member then committed": (
        "at most once",
        Schedule(
            seed=38, members=2, max_rows=5, budget=0,
            events=(
                Event(0.0, "append", 0, 1),
                Event(0.0, "append", 1, 4),
                Event(3.57, "fault", target="commit", how="sleep after", seconds=40.0),
                Event(3.94, "drain", 1, seconds=5.0),
                Event(6.0, "append", 0, 10),
                Event(9.45, "append", 0, 1),
                Event(9.95, "append", 0, 3),
            ),
        ),
    ),
    "at most once, a commit without an answer had the offset that another member then committed": (
        "at most once",
        Schedule(
            seed=500088, members=3, max_rows=20, budget=0,
            events=(
                Event(at=0.0, what='append', number=0, count=2),
                Event(at=0.0, what='append', number=1, count=16),
                Event(at=2.17, what='fault', seconds=40.0, target='commit', how='slow'),
                Event(at=2.44, what='jump', seconds=5.0),
                Event(at=5.02, what='append', number=0, count=14),
                Event(at=7.27, what='deal', number=970, count=0),
                Event(at=7.44, what='deal', number=397, count=0),
                Event(at=12.74, what='drain', number=1, count=0, seconds=5.0),
                Event(at=13.62, what='sleep', number=2, count=0, seconds=5.0),
            ),
        ),
    ),
    "a flush outlasted its rebalance, and committed rows of a lost partition without their offsets": (
        "transactions",
        Schedule(
            seed=2427, members=3, max_rows=3, budget=0,
            events=(
                Event(0.0, "append", 0, 5),
                Event(0.71, "fault", target="offsets", how="slow", seconds=15.0),
                Event(15.55, "append", 0, 1),
            ),
        ),
    ),
    "a second rebalance waited for flushes that no commit could follow any more": (
        "at most once",
        Schedule(
            seed=305063, members=1, max_rows=8, budget=0,
            events=(
                Event(0.0, "append", 0, 2),
                Event(0.0, "append", 1, 16),
                Event(1.68, "fault", target="commit", how="slow", seconds=40.0),
                Event(2.05, "append", 0, 10),
                Event(2.22, "jump", seconds=5.0),
                Event(9.22, "append", 0, 3),
                Event(12.74, "deal", 272),
            ),
        ),
    ),
    "a worker ended because its transactional id had no answer at once": (
        "transactions",
        Schedule(
            seed=124, members=1, max_rows=5, budget=0,
            events=(
                Event(6.36, "append", 1, 1),
                Event(7.12, "fault", target="commit", how="slow", seconds=40.0),
                Event(7.28, "kill", 0, seconds=5.0),
            ),
        ),
    ),
    "a commit whose connection was lost was late, and undid the next one": (
        "clickhouse",
        Schedule(
            seed=1, members=1, max_rows=5, budget=0,
            events=(
                Event(2.15, "fault", target="commit", how="late", seconds=5.0),
                Event(6.24, "append", 1, 1),
            ),
        ),
    ),
    "an announcement without an answer counted as not written after another member had written it": (
        "chain of ranges",
        Schedule(
            seed=1204, members=2, max_rows=8, budget=0,
            events=(
                Event(0.0, "append", 0, 16),
                Event(0.0, "append", 1, 1),
                Event(1.64, "fault", target="commit", how="lose", seconds=5.0),
            ),
        ),
    ),
    "a member that slept over its assignment wrote the range that its successor had announced": (
        "chain of ranges",
        Schedule(
            seed=700925, members=2, max_rows=8, budget=0,
            events=(
                Event(0.0, "append", 0, 1),
                Event(0.0, "append", 1, 3),
                Event(2.23, "fault", target="commit", how="late", seconds=5.0),
                Event(2.55, "sleep", 0, seconds=15.0),
                Event(7.98, "drain", 1, seconds=5.0),
                Event(10.94, "fault", target="commit", how="sleep before", seconds=2.0),
            ),
        ),
    ),
    "a drain whose commits are fenced did not end with the rebalance, but with its deadline": (
        "clickhouse",
        Schedule(
            seed=62, members=3, max_rows=2, budget=0,
            events=(
                Event(8.3, "append", 1, 10),
                Event(11.5, "fault", target="sink", how="sleep before", seconds=40.0),
                Event(13.84, "append", 1, 1),
                Event(15.23, "drain", 2, seconds=2.0),
            ),
        ),
    ),
    "a worker ended because the machine had stood still while it asked for its transactional id": (
        "transactions",
        Schedule(
            seed=706218, members=1, max_rows=2, budget=0,
            events=(
                Event(0.0, "jump", seconds=40.0),
                Event(2.14, "append", 1, 1),
                Event(2.31, "jump", seconds=40.0),
            ),
        ),
    ),
    "a rebalance waited for records below a gap, whose map could not begin before its end": (
        "clickhouse",
        Schedule(
            seed=420, members=2, max_rows=8, budget=2000, revoke=8.0,
            events=(
                Event(0.0, "append", 0, 1),
                Event(0.14, "fault", target="sink", how="refuse", seconds=0.5),
                Event(2.04, "append", 0, 2),
                Event(4.35, "append", 1, 5),
                Event(4.36, "move", 0, how="sleep before"),
                Event(8.85, "trim", 1, 20),
                Event(15.64, "append", 1, 1),
            ),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("found", FOUND)
def test_a_schedule_that_once_broke_a_rule_does_not_any_more(found: str) -> None:
    name, schedule = FOUND[found]
    with garbage_is_silent():
        assert Simulator(STRATEGIES[name](), records_of(name)).run(schedule).problems == ()


@pytest.mark.parametrize(("name", "seed"), [("at most once", 99), ("branches at least once", 5577)])
def test_no_rule_is_broken_by_requests_of_a_killed_member_or_by_names_of_branches(
    name: str, seed: int
) -> None:
    simulator = Simulator(STRATEGIES[name](), records_of(name))
    with garbage_is_silent():
        assert simulator.run(simulator.generate(seed)).problems == ()


@pytest.mark.parametrize("name", ["clickhouse", "at least once", "transactions"])
def test_records_that_retention_removed_before_they_were_read_are_the_only_ones_that_are_missing(
    name: str,
) -> None:
    events = (
        Event(0.0, "append", 0, 4),
        Event(8.0, "kill", 0, seconds=2.0),
        Event(8.1, "append", 0, 8),
        Event(8.2, "trim", 0, 8),
    )
    with garbage_is_silent():
        outcome = Simulator(STRATEGIES[name](), RECORDS).run(Schedule(1, 1, 3, 0, events))
    assert outcome.problems == ()
    (gone,) = (gone.nonzero()[0].tolist() for gone in outcome.gone.values() if gone.any())
    assert gone == [4, 5, 6, 7]
    assert str(events[3]) == "  8.20 s  retention removes the first 8 records of partition 0"


@pytest.mark.parametrize("how", ["", "kill before", "sleep before"])
@pytest.mark.parametrize("name", ["clickhouse", "chain of ranges", "at least once", "transactions"])
def test_records_are_written_once_more_after_a_reset_and_skipped_where_a_tool_goes_forward(
    name: str, how: How
) -> None:
    for event, text in (
        (Event(4.0, "reset", 0, 2, how=how), "kmr moves simulated-0 to 2"),
        (Event(4.0, "move", 0, 16, how=how), "another tool moves simulated-0 to 17"),
    ):
        events = (Event(0.0, "append", 0, 16), event)
        with garbage_is_silent():
            outcome = Simulator(STRATEGIES[name](), RECORDS).run(Schedule(1, 2, 3, 0, events))
        assert outcome.problems == ()
        texts = [step.text for step in outcome.steps]
        rest = texts[texts.index(text) :]
        writes = [each for each in rest if each.startswith(("inserts", "writes", "sends"))]
        assert bool(writes) == (event.what == "reset")


def test_a_map_that_makes_other_rows_of_the_same_record_is_named() -> None:
    numbers = itertools.count()

    @map_record
    def number(record: Record) -> dict[str, int]:
        return {"n": next(numbers)}

    strategy = Strategy(number, [MemoryWriter(Journal())])
    with pytest.raises(
        StrategyError, match=r"number is not deterministic: of record simulated-0\[0\]"
    ):
        simulate(strategy, [b"a", b"b"])


def _numbered() -> Strategy:
    """Make a strategy whose reducer has a state that outlives its flushes."""
    numbers = itertools.count()

    def number(rows: pa.Table) -> pa.Table:
        return rows.append_column("number", pa.array([next(numbers) for _ in range(len(rows))]))

    writer = ClickHouseWriter("hits", url="http://localhost:1")
    return Strategy(STRATEGIES["clickhouse"]().map, [Collect(number), writer])


def test_a_reducer_that_makes_other_rows_of_a_replayed_range_is_found_with_a_short_schedule() -> (
    None
):
    with pytest.raises(AssertionError) as found:
        simulate(_numbered(), [b"row"] * 20, schedules=100)
    rule, seed, *events = str(found.value).splitlines()
    assert rule.startswith("a range that is written again has other rows: simulated:simulated:")
    assert seed.endswith("shrunk to these events:")
    assert 2 <= len(events) <= 5
    troubles = ("killed", "lost", "rebalance", "expels", "sleeps")
    assert any(trouble in event for event in events for trouble in troubles)


def test_a_schedule_that_breaks_a_rule_only_once_is_no_result() -> None:
    simulator = Simulator(STRATEGIES["clickhouse"](), RECORDS)
    schedule = simulator.generate(1)
    with garbage_is_silent():
        outcome = replace(simulator.run(schedule), problems=(Problem("a rule", "broken once"),))
        with pytest.raises(StrategyError, match=r"a rule: broken once .* keeps state from one run"):
            simulator.shrink(Failing(schedule, outcome))


def test_a_replay_repeats_every_step_also_in_a_process_with_other_hashes(tmp_path: Path) -> None:
    simulator = Simulator(STRATEGIES["chain of ranges"](), RECORDS)
    file = tmp_path / "replay.json"
    write_replay(file, simulator.generate(3))
    assert read_replay(file) == simulator.generate(3)
    code = (
        "import sys, pathlib; from tests.framework.simulation.strategies import *;"
        "from kmr.simulation.schedule import read_replay; from kmr.simulation.simulate import Simulator;"
        "from kmr.simulation.trace import draw_mermaid, draw_text;"
        "steps = Simulator(STRATEGIES['chain of ranges'](), RECORDS).run("
        "read_replay(pathlib.Path(sys.argv[1]))).steps;"
        "print(*draw_text(steps), *draw_mermaid(steps), sep='\\n')"
    )
    traces = [
        subprocess.run(
            [sys.executable, "-c", code, str(file)],
            check=True, capture_output=True, cwd=Path(__file__).parents[3],
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert traces[0] == traces[1]
    assert b"sequenceDiagram" in traces[0]
    assert traces[0].count(b"\n") > 60


def test_a_strategy_without_an_error_sink_is_not_run_with_records_that_fail() -> None:
    strategy = Strategy(STRATEGIES["at least once"]().map, [MemoryWriter(Journal())])
    with pytest.raises(StrategyError, match="has no reduce_err: a worker would stop there"):
        simulate(strategy, RECORDS)


def test_rows_that_say_that_they_are_of_another_record_lose_no_record() -> None:
    strategy = Strategy(mislead, ClickHouseWriter("hits", url="http://localhost:1"))
    simulate(strategy, [b"row"] * 32, schedules=60)
