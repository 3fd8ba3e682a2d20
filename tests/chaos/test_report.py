"""Reports of runs that never were."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from chaos.__main__ import main
from chaos.checkers import GROUP_CHECKERS, check
from chaos.course import Run
from chaos.history import History, Recorder
from chaos.report import write_report
from chaos.scenarios import SCENARIOS
from chaos.soak import soak
from chaos.timeline import timeline
from kmr.chaos.faults import Strike

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def run_of(draft: Any, scenario: str) -> Run:
    history = draft.history()
    recorder = Recorder()
    event = recorder.event("fault", "kill-worker", "w-1 | <b>")
    event["until"] = event["time"] + 1_500_000_000
    history = replace(history, events=recorder.history().events)
    results = [checker(history, draft.promise()) for checker in GROUP_CHECKERS]
    strikes = [Strike("kill-worker", 7)]
    return Run(SCENARIOS[scenario], 5, strikes, ["disk-full"], 2.0, history, results)


def test_a_report_names_the_violation_and_the_command_that_repeats_it(
    draft: Callable[..., Any], tmp_path: Path
) -> None:
    made = draft(2, 5)
    made.rows.pop(7)
    run = run_of(made, "crashes")
    summary = write_report(run, tmp_path).read_text()
    assert run.verdict == "violated"
    assert "python -m chaos --scenario crashes --seed 5" in summary
    assert "- t-1[2..2]" in summary
    assert "Not possible here: disk-full" in summary
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())
    assert report["verdict"] == "violated"
    assert report["schedule"] == [{"fault": "kill-worker", "seed": 7}]
    lost = next(result for result in report["results"] if result["checker"] == "lost")
    assert lost["offences"] == [{"topic": "t", "partition": 1, "first": 2, "last": 2, "note": ""}]
    again = History.load(tmp_path / "history")
    assert check(again, [made.promise()], memory_limit=1)[: len(run.results)] == run.results


def test_the_report_of_a_soak_has_its_plot_and_says_how_long_it_was(
    draft: Callable[..., Any], tmp_path: Path
) -> None:
    run = replace(run_of(draft(1, 3), "crashes"), scenario=soak(60))
    held = {"process": "broker", "rss": 1, "pss": 1, "descriptors": 1, "threads": 1, "tasks": 1}
    resources = History.of({"resources": [held | {"time": at} for at in (1, 2)]}).resources
    run = replace(run, history=replace(run.history, resources=resources))
    summary = write_report(run, tmp_path).read_text()
    assert "python -m chaos --soak 60s --seed 5" in summary
    ET.fromstring((tmp_path / "resources.svg").read_text())


def test_a_checker_that_finds_nothing_where_it_had_to_is_no_success(
    draft: Callable[..., Any],
) -> None:
    good = draft(1, 3)
    assert run_of(good, "crashes").verdict == "ok"
    assert run_of(good, "commit-after-insert").verdict == "violated"
    doubled = draft(1, 3)
    doubled.rows.append(dict(doubled.rows[0]))
    assert run_of(doubled, "commit-after-insert").verdict == "ok"
    assert run_of(doubled, "crashes").verdict == "violated"


def test_an_unknown_result_is_no_success(draft: Callable[..., Any]) -> None:
    made = draft(1, 3)
    made.unread = {"dead/g": "gone"}
    assert run_of(made, "crashes").verdict == "unknown"


def test_the_timeline_is_a_picture_with_every_fault(draft: Callable[..., Any]) -> None:
    root = ET.fromstring(timeline(run_of(draft(2, 5), "crashes").history, "a < b"))
    texts = [element.text for element in root.iter() if element.text]
    assert "a < b" in texts
    assert "kill-worker" in texts
    assert any("w-1 | <b>" in text for text in texts)
    ET.fromstring(timeline(History.of({}), "nothing happened"))


def test_every_scenario_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in SCENARIOS)


def test_services_that_are_not_there_are_one_clear_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    outside = ("--bootstrap-servers", "127.0.0.1:1", "--clickhouse-url", "http://127.0.0.1:1")
    assert main(["--scenario", "network", *outside, "--output", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "network could not begin" in printed
    assert "127.0.0.1:1" in printed


def test_an_unknown_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--scenario", "nothing"])
    assert end.value.code == 2
    assert "nothing" in capsys.readouterr().err
