"""Seeds, schedules, scenarios: everything that is fixed before a run."""

from __future__ import annotations

import pytest

from chaos.scenarios import EVERY_FAULT, LONG, SCENARIOS, SHORT, Scenario
from chaos.shape import Outside
from chaos.workload import Workload


def test_every_fault_strikes_in_some_scenario() -> None:
    assert {name for scenario in SCENARIOS.values() for name in scenario.faults} == set(EVERY_FAULT)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_every_scenario_is_possible_with_services_of_its_own(scenario: Scenario) -> None:
    assert scenario.impossible(Outside()) == []


def test_services_of_others_are_not_harmed() -> None:
    everything = SCENARIOS["everything"]
    outside = Outside("kafka:9092", "http://clickhouse:8123")
    assert set(everything.impossible(outside)) == {
        *("kill-broker", "kill-clickhouse", "kill-everything", "disk-full")
    }


def test_the_guarantee_is_switched_off_in_two_short_scenarios() -> None:
    assert [scenario.name for scenario in SHORT if scenario.finds] == [
        "commit-after-insert",
        "resume-from-max",
    ]
    assert not any(scenario.finds for scenario in LONG)


def test_a_workload_goes_through_the_environment_unchanged() -> None:
    workload = Workload("t", "at-least-once", "", "dead", 7, 0.5, 1.5, chain=True)
    assert Workload.of(workload.environment()) == workload


def test_a_suffix_keeps_runs_on_services_of_others_apart() -> None:
    workload = Workload("t", dead_topic="d").with_suffix("_1")
    assert (workload.table, workload.dead_topic, workload.dead_table) == ("t_1", "d_1", "")
