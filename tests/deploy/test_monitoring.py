"""The alerts and the dashboard in deploy/ use metrics that workers have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from kmr.observe.metrics import Metrics
from kmr.supervisor.fleet_status import metrics_of_supervisor

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD = DEPLOY / "grafana" / "kmr.json"
SERIES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
    "info": ("_info",),
}


def series() -> dict[str, set[str]]:
    """The names of all series of a worker, with their labels."""
    metrics = Metrics()
    found = {}
    for collector in vars(metrics).values():
        if not hasattr(collector, "describe"):  # the registry, and what is no metric
            continue
        (family,) = collector.describe()
        for suffix in SERIES[family.type]:
            found[f"{family.name}{suffix}"] = {*collector._labelnames}
    for family in metrics_of_supervisor([], []):
        found[f"{family.name}{SERIES[family.type][0]}"] = {"worker"}
    return found


def expressions() -> list[str]:
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    found = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        found += [target["expr"] for target in panel.get("targets", ())]
    return found


@pytest.mark.parametrize("expression", expressions())
def test_every_metric_and_label_of_an_expression_is_one_of_a_worker(expression: str) -> None:
    known = series()
    named = re.findall(r"\b(kmr_\w+)(?:\{([^}]*)\})?", expression)
    assert named or 'up{job="kmr"}' in expression
    of_targets = {"job", "instance", "worker", "le"}
    labels = of_targets.union(*(known[name] for name, _ in named))
    for _, selected in named:
        assert {*re.findall(r"(\w+)!?=", selected)} <= labels
    for grouped in re.findall(r"by \(([^)]*)\)", expression):
        assert {*grouped.split(", ")} <= labels


def test_no_two_panels_overlap() -> None:
    cells = set()
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in cells, panel["title"]
                cells.add((x, y))


def test_the_alerts_fire_when_they_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    for command in (["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]):
        done = subprocess.run(
            [promtool, *command], cwd=RULES.parent, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
