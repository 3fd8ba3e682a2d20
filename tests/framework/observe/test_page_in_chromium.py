"""The page in a real browser that reaches nothing but the worker: what it shows, and its picture."""

from __future__ import annotations

import math
import re
import time
from functools import partial
from html import unescape
from typing import TYPE_CHECKING

import msgspec
import pytest
from anyio import to_thread

from kmr.observe.health import STEP, OneWorker, StatusHistory, build_app, listen_on
from kmr.observe.metrics import Metrics
from kmr.observe.status import PartitionStatus, StageStatus, WorkerStatus
from kmr.service.http import HttpServer
from tests.framework.workers import summary_of
from tools.browser import CHROMIUM, Visit, visit

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.observe.status import WorkerState

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: tools/debian chromium")

PNG = b"\x89PNG\r\n\x1a\n"
REASON = "no answer from <db:8123> within 5 s"


def metrics_of_failures() -> Metrics:
    metrics = Metrics()
    metrics.count_failed("map", 3, "ValueError: time data 'yesterday' does not match", "hits:0:41")
    metrics.count_retry("reduce-1", REASON, 4)
    return metrics


def status(metrics: Metrics, lag: int = 300) -> WorkerStatus:
    summary = summary_of(
        partitions=1, consumed=9_000, settled=8_000, inflight_bytes=2**20, uptime=3_600.0
    )
    return WorkerStatus(
        state="running",
        live=True,
        ready=True,
        problem=f"worker 1: reduce-1: {REASON}",
        group="hits-group",
        topics=("hits",),
        stages=(
            StageStatus("map hits-0", "mapping", 2, seconds=0.2),
            StageStatus("reduce-1", "retrying", 3, 12_000, 3_400_000, 2.2, REASON),
            StageStatus("reduce-err", "idle", 0),
        ),
        partitions=(PartitionStatus("hits", 0, 5_000, 4_900, 5_100, 0, 5_000 + lag, paused=False),),
        inflight_bytes=12 * 2**20,
        inflight_limit=64 * 2**20,
        consumed=9_000,
        settled=8_000,
        uptime=3_600.0,
        workers=(summary,),
        failed=metrics.done.failed,
        repeated=metrics.repeated,
        failures=metrics.failures.newest_first(),
        letters="hits-dead",
    )


def history_of(now: WorkerStatus, source: OneWorker) -> StatusHistory:
    """A full hour, with a peak of the lag and some failures."""
    history, begun = StatusHistory(source.status), time.time() - 3_600
    for at in range(721):
        lag = 40_000 if 300 < at < 330 else round(1_000 + 900 * math.sin(at / 30))
        partition = msgspec.structs.replace(now.partitions[0], end=5_000 + lag)
        then = msgspec.structs.replace(
            now,
            consumed=at * 10_000,
            settled=at * 10_000,
            partitions=(partition,),
            failed=min(3, at // 200),
            repeated=0,
        )
        history.note(then, at * STEP, begun + at * STEP)
    return history


async def visited(
    picture: Path, now: WorkerStatus | None = None, size: tuple[int, int] = (1280, 1500)
) -> Visit:
    metrics = metrics_of_failures()
    now = now or status(metrics)
    source = OneWorker(lambda: now, metrics)
    app = build_app(source, history_of(now, source))
    async with HttpServer(app, partial(listen_on, "127.0.0.1", 0)) as server:
        return await to_thread.run_sync(partial(visit, server.url, picture, size=size))


def texts(document: str, of: str) -> str:
    """The text of the element with an id, its tags taken away."""
    found = re.search(rf'<(\w+)[^>]*id="{of}"[^>]*>(.*?)</\1>', document, re.DOTALL)
    assert found is not None, of
    spaced = re.sub(r"<[^>]+>", " ", found[2]).replace("\u202f", " ")
    return " ".join(unescape(spaced).split())


async def test_the_page_shows_figures_an_hour_of_history_and_failures_with_reasons(
    tmp_path: Path,
) -> None:
    picture = tmp_path / "page.png"
    page = await visited(picture)
    shown = partial(texts, page.document)
    assert page.console == []
    assert shown("group") == "hits-group"
    assert shown("banner") == f"worker 1: reduce-1: {REASON}"
    assert (shown("lag"), shown("inflight")) == ("300", "12.0 MiB")
    assert (shown("failed"), shown("repeated")) == ("3 records", "4 attempts repeated")
    failures = shown("failures")
    assert re.match(rf"\S+ \w+ ago flush repeated reduce-1 4 {re.escape(REASON)}", failures)
    assert "record failed map 3 ValueError: time data 'yesterday' does not match" in failures
    assert failures.endswith("kmr dlq show hits-dead hits:0:41")
    assert shown("workers").startswith("1 (process 7) running")
    assert 'aria-pressed="true">1 h<' in page.document
    captions = re.findall(r"<figcaption>(.*?)<span", page.document)
    assert captions == ["Records per second", "Lag", "In flight", "Failures in 5 s"]
    assert "Lag: highest 40.0\u202fk records" in page.document
    [lag] = re.findall(r'points="([^"]*)"', page.document.split("Lag: highest")[1])[1:2]
    assert len(lag.split()) > 700
    drawn = picture.read_bytes()
    assert drawn.startswith(PNG)
    assert (int.from_bytes(drawn[16:20]), int.from_bytes(drawn[20:24])) == (1280, 1500)
    assert len(drawn) > 50_000  # an empty page is a twentieth of it


@pytest.mark.parametrize(
    ("state", "says"),
    [("suspended", "The group rebalances"), ("draining", "Draining: nothing more")],
)
async def test_a_worker_that_stands_still_says_why_and_what_waits_or_is_over_budget_is_coloured(
    tmp_path: Path, state: WorkerState, says: str
) -> None:
    now = msgspec.structs.replace(
        status(metrics_of_failures()),
        state=state,
        problem=None,
        stages=(
            StageStatus("map hits-0", "waiting", 2, seconds=9.0, waits_for="room in reduce-1"),
        ),
        inflight_bytes=70 * 2**20,
        letters=None,
    )
    page = await visited(tmp_path / "page.png", now, (500, 1900))
    shown = partial(texts, page.document)
    assert page.console == []
    assert shown("banner").startswith(says)
    assert re.search(r'id="state"[^>]* data-tone="warn"', page.document)
    assert shown("inflight-limit") == "of 64.0 MiB, over the budget: intake waits"
    assert "waits for room in reduce-1" in shown("stages")
    assert re.search(r'class="badge" style="--tone: ?var\(--warn\);?">waiting<', page.document)
    assert re.search(r'class="box"[^>]*data-tone="warn"', page.document)
    assert "record hits:0:41" in shown("failures")


async def test_what_open_windows_hold_is_no_lag(tmp_path: Path) -> None:
    now = status(metrics_of_failures())
    held = (msgspec.structs.replace(each, held=300) for each in now.partitions[:1])
    now = msgspec.structs.replace(now, partitions=tuple(held))
    page = await visited(tmp_path / "page.png", now)
    assert texts(page.document, "lag") == str(now.partitions[0].lag) == "0"
    assert texts(page.document, "lag-eta") == "up to date, open windows hold 300"


async def test_a_branch_that_has_not_written_is_no_lane_of_its_stage(tmp_path: Path) -> None:
    lanes = [StageStatus(f"reduce-1 shop-{n}", "retrying", 0, 30, 900, 2.0, REASON) for n in (0, 1)]
    branch = StageStatus(
        "reduce-1 Refund shop-1", "retrying", 0, 10, 300, 2.0, REASON, branch="Refund"
    )
    now = msgspec.structs.replace(status(metrics_of_failures()), stages=(*lanes, branch))
    page = await visited(tmp_path / "page.png", now)
    flow = texts(page.document, "flow")
    assert "Reduce 1 \u00d7 2 2 retrying" in flow
    assert "reduce-1 \u00d7 2 " in (stages := texts(page.document, "stages"))
    assert "2 retrying 2.0 s 0 60 1.8 KiB" in stages
    assert "reduce-1 Refund shop-1 retrying" in stages
