"""The files of a run: report.json for machines, summary.md for people, timeline.svg to look at."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import msgspec

from chaos.soak import plot
from chaos.timeline import timeline

if TYPE_CHECKING:
    from pathlib import Path

    from chaos.course import Run

_PACKAGES = ("kafka-map-reduce", "aiokafka", "clickhouse-connect", "chdb", "pyarrow")


def write_report(run: Run, directory: Path) -> Path:
    """Write all of it, the recorded history too; returns the path of the summary."""
    directory.mkdir(parents=True, exist_ok=True)
    run.history.save(directory / "history")
    json = msgspec.json.format(msgspec.json.encode(report_of(run)), indent=2)
    (directory / "report.json").write_bytes(json + b"\n")
    title = f"{run.scenario.name}, seed {run.seed}: {run.verdict}"
    (directory / "timeline.svg").write_text(timeline(run.history, title))
    if run.history.resources.num_rows:
        (directory / "resources.svg").write_text(plot(run.history, title))
    summary = directory / "summary.md"
    summary.write_text(summary_of(run))
    return summary


def report_of(run: Run) -> dict[str, Any]:
    """The run as plain values."""
    shape = run.scenario.shape
    return {
        "scenario": run.scenario.name,
        "about": run.scenario.about,
        "seed": run.seed,
        "verdict": run.verdict,
        "expected_violations": sorted(run.scenario.finds),
        "seconds": round(run.seconds, 3),
        "partitions": shape.partitions,
        "groups": [asdict(group) for group in shape.groups],
        "counts": _counts(run),
        "results": [asdict(result) for result in run.results],
        "schedule": [asdict(strike) for strike in run.schedule],
        "skipped": run.skipped,
        "events": run.history.events.to_pylist(),
        "versions": {name: _version(name) for name in _PACKAGES}
        | {"python": platform.python_version(), "system": platform.platform()},
    }


def summary_of(run: Run) -> str:
    """The run in words and tables."""
    lines = [
        f"# {run.scenario.name}: {run.verdict}",
        "",
        f"{run.scenario.about[0].upper()}{run.scenario.about[1:]}.",
        "",
        f"Again with the same schedule: `python -m chaos {run.scenario.arguments} --seed {run.seed}`",
        "",
        _sentence(run),
        "",
        "![timeline](timeline.svg)",
        "",
        "| group | checker | verdict | what it found |",
        "| --- | --- | --- | --- |",
    ]
    for result in run.results:
        verdict: str = result.verdict
        if result.checker in run.scenario.finds:
            verdict += (
                ", as expected" if verdict == "violated" else ", but it had to find something"
            )
        lines.append(f"| {result.group} | {result.checker} | {verdict} | {result.detail} |")
    for result in run.results:
        if result.offences:
            lines += ["", f"## {result.checker} {result.group}".rstrip(), ""]
            lines += [f"- {offence}" for offence in result.offences]
    lines += ["", "## Course", "", "| second | what | | took |", "| ---: | --- | --- | ---: |"]
    events = run.history.events.sort_by("time").to_pylist()
    for event in events:
        took = f"{(event['until'] - event['time']) / 1e9:.1f} s" if event["until"] else ""
        second = (event["time"] - events[0]["time"]) / 1e9
        detail = " ".join(event["detail"].split())[:300].replace("|", "\\|")
        lines.append(f"| {second:.1f} | {event['kind']} {event['name']} | {detail} | {took} |")
    if run.skipped:
        lines += ["", f"Not possible here: {', '.join(run.skipped)}."]
    return "\n".join([*lines, ""])


def _sentence(run: Run) -> str:
    counts = _counts(run)
    return (
        f"{counts['acked']:,} records acknowledged, {counts['unknown']:,} of unknown fate; "
        f"{counts['rows']:,} rows in the sink, {counts['dead']:,} dead letters; {run.seconds:.0f} s."
    )


def _counts(run: Run) -> dict[str, int]:
    outcomes = run.history.produced["outcome"].to_pylist()
    return {name: outcomes.count(name) for name in ("acked", "aborted", "unknown")} | {
        "rows": run.history.rows.num_rows,
        "dead": run.history.dead.num_rows,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
