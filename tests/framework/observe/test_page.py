"""The page of a worker in Node, over a document of a few lines: what it draws of a status."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib import resources
from typing import Any

import msgspec
import pytest

from kmr.observe.status import PartitionStatus, StageStatus, WorkerStatus
from tests.framework.workers import summary_of

NODE = shutil.which("node")

DOCUMENT = """
class Element {
  constructor(name) {
    Object.assign(this, { name, attributes: {}, children: [], dataset: {}, own: "" });
    this.style = { setProperty() {} };
  }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  append(...nodes) { this.children.push(...nodes); }
  replaceChildren(...nodes) { this.children = nodes; }
  set textContent(text) { this.own = String(text); this.children = []; }
  get textContent() { return this.own + this.children.map(c => c.textContent ?? String(c)).join(""); }
  all(name) {
    return this.children.filter(c => c.all).flatMap(c => [...(c.name === name ? [c] : []), ...c.all(name)]);
  }
}
const elements = {};
globalThis.document = {
  getElementById: id => elements[id] ??= new Element(id),
  createElement: name => new Element(name), createElementNS: (_, name) => new Element(name),
};
globalThis.fetch = async () => { throw new Error("no server"); };
globalThis.setTimeout = () => {};
"""

REPORT = """
const flow = elements.flow;
const all = (name, kind) => flow.all(name).filter(n => n.attributes.class === kind);
const place = ({ attributes: { x, y, width, height } }) => [x, y, width, height].map(Number);
console.log(JSON.stringify({
  names: all("text", "name").map(n => n.textContent),
  lines: all("text", "small").map(n => n.textContent),
  boxes: all("rect", "box").map(place),
  cells: all("rect", "cell").map(place),
  width: Number(flow.attributes.viewBox.split(" ")[2]),
  workers: elements.workers.children.map(tr => tr.children.map(td => td.textContent)),
  axes: [0, 1, 3, 5, 41, 999, 1001].map(most => [0, 0.5, 1].map(share => share * ceiling(most))),
  rows: elements.stages.children.map(tr => tr.children.map(td => td.textContent)),
}));
"""


def status(partitions: int, *stages: StageStatus) -> WorkerStatus:
    return WorkerStatus(
        state="running",
        live=True,
        ready=True,
        problem=None,
        group="g",
        topics=("t",),
        stages=stages,
        partitions=tuple(
            PartitionStatus("t", number, 5, 5, 5, 0, 9, paused=False)
            for number in range(partitions)
        ),
        inflight_bytes=1,
        inflight_limit=2,
        consumed=9,
        settled=5,
        uptime=1.0,
    )


def drawn(now: WorkerStatus, consumed: float = 0.0, across: int = 1280) -> dict[str, Any]:
    """Show a status in a window so many pixels across, and report what the page has."""
    assert NODE is not None
    page = resources.files("kmr.observe").joinpath("health.html").read_text(encoding="utf-8")
    found = re.search(r"<script>(.*)</script>", page, re.DOTALL)
    assert found is not None
    show = f"show({msgspec.json.encode(now).decode()}, {{ consumed: {consumed}, settled: 0 }});"
    window = f"globalThis.innerWidth = {across};"
    program = "\n".join((DOCUMENT, window, found[1], show, REPORT))
    ended = subprocess.run([NODE, "-"], input=program, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


pytestmark = pytest.mark.skipif(NODE is None, reason="needs Node")


def test_the_copies_of_a_reducer_are_one_stack_and_their_figures_are_summed() -> None:
    stages = [StageStatus(f"map t-{number}", "idle", 0) for number in range(200)]
    for reducer in ("reduce-1", "reduce-2"):
        stages += [
            StageStatus(
                f"{reducer} t-{number}", "flushing" if number < 5 else "collecting", 1, 10, 1024
            )
            for number in range(200)
        ]
    page = drawn(status(200, *stages, StageStatus("reduce-err", "idle", 0)))
    expected = [
        "Consumer",
        "Map \u00d7 200",
        "Reduce 1 \u00d7 200",
        "Reduce 2 \u00d7 200",
        "Commit",
    ]
    assert page["names"] == [*expected, "Reduce Err", "Event handler"]
    assert page["lines"].count("5 flushing, 195 collecting") == 2
    assert page["lines"].count("2.0\u202fk rows, 200\u202fKiB") == 2
    assert page["lines"].count("200 queued") == 2
    assert page["width"] < 1200
    assert [row[0][:-1] for row in page["rows"][:-1]] == [
        "map \u00d7 200",
        "reduce-1 \u00d7 200",
        "reduce-2 \u00d7 200",
    ]


@pytest.mark.parametrize("partitions", [2, 24, 200, 1000])
def test_the_cells_of_all_copies_are_apart_and_inside_their_box(partitions: int) -> None:
    stages = [StageStatus(f"map t-{number}", "mapping", 0) for number in range(partitions)]
    page = drawn(status(partitions, *stages))
    (left, top, width, height) = page["boxes"][3]  # after the consumer and two of the stack
    assert len({(x, y) for x, y, _, _ in page["cells"]}) == partitions
    for x, y, wide, high in page["cells"]:
        assert left < x < x + wide < left + width
        assert top < y < y + high < top + height
        assert min(wide, high) > 1


def test_on_a_phone_the_stages_are_in_a_column_and_no_two_boxes_overlap() -> None:
    stages = (StageStatus("map t-0", "idle", 0), StageStatus("reduce-1", "flushing", 3))
    now = status(
        1, *stages, StageStatus("reduce-2", "idle", 0), StageStatus("reduce-err", "idle", 0)
    )
    page = drawn(now, across=390)
    assert page["width"] < 390
    assert drawn(now)["width"] > 1000
    consumer, *others = page["boxes"]
    column = [box for box in others if box[0] == consumer[0]]
    assert [box[1] for box in column] == sorted(box[1] for box in column)
    assert len(column) == 5  # map, two reducers, commit, event handler
    for number, (x, y, width, height) in enumerate(page["boxes"]):
        assert 0 < x < x + width < page["width"]
        for left, top, wide, high in page["boxes"][number + 1 :]:
            apart = x + width < left or left + wide < x or y + height < top or top + high < y
            assert apart
    assert "3 queued" in page["lines"]


def test_few_copies_are_rows_of_their_own_below_their_sum() -> None:
    stages = [StageStatus(f"reduce-1 t-{number}", "idle", 0, rows=number) for number in range(3)]
    page = drawn(status(3, *stages))
    assert [(row[0][:-1] if "\u00d7" in row[0] else row[0], row[4]) for row in page["rows"]] == [
        ("reduce-1 \u00d7 3", "3"),
        ("reduce-1 t-0", "0"),
        ("reduce-1 t-1", "1"),
        ("reduce-1 t-2", "2"),
    ]


def test_a_map_that_runs_is_not_shown_as_idle() -> None:
    waiting = status(1, StageStatus("map t-0", "waiting", 0, seconds=2.0))
    assert "waiting for 2.0\u202fs" in drawn(waiting)["lines"]
    between = status(1, StageStatus("map t-0", "idle", 0))
    assert "keeps up" in drawn(between, consumed=1000.0)["lines"]
    assert "idle" in drawn(between)["lines"]


def test_the_reason_of_one_copy_is_that_of_the_stack() -> None:
    page = drawn(
        status(
            2,
            StageStatus("reduce-1 t-0", "collecting", 0),
            StageStatus("reduce-1 t-1", "retrying", 0, reason="busy"),
        )
    )
    assert "1 retrying, 1 collecting" in page["lines"]
    assert "busy" in page["lines"]


def test_several_workers_have_a_row_each() -> None:
    one = summary_of(0)
    other = summary_of(
        pid=None,
        state="starting",
        ready=False,
        problem="killed",
        restarts=3,
        partitions=0,
        consumed=5,
        settled=5,
        inflight_bytes=0,
        uptime=0.0,
    )
    page = drawn(msgspec.structs.replace(status(1), workers=(one, other)))
    assert page["workers"] == [
        ["0 (process 7)", "running", "60\u202fs", "3", "999", "2.0\u202fKiB", "2", ""],
        ["1", "starting", "0\u202fms", "0", "5", "0\u202fB", "3", "killed"],
    ]
    assert drawn(status(1))["workers"] == []


def test_the_axis_of_a_chart_has_three_whole_numbers_and_ends_above_the_highest_value() -> None:
    axes = drawn(status(1))["axes"]
    assert axes == [
        [0, 1, 2],
        [0, 1, 2],
        [0, 2, 4],
        [0, 3, 6],
        [0, 30, 60],
        [0, 500, 1000],
        [0, 1000, 2000],
    ]
