"""`kmr backfill`: read the history of topics beside a live group."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import anyio
from cyclopts import Parameter
from rich.filesize import decimal
from rich.text import Text

from .._extras import require_extra
from ..config.flags import Given, settings_flags
from ..config.schema import show_count
from ..delivery.announcement import history_group
from ..doctor.examination import check_sinks
from ..errors import SettingsError, StrategyError
from ..history.backfill import (
    WantedRange,
    begin_reading,
    beside,
    hand_over,
    offsets_left,
    prepare,
    spark_bounds,
    watching,
    worker_flags,
)
from ..loading import strategy_of
from ..observe.logs import setup_logs
from ..settings import WORKER, Settings
from ..spark.engine.engine_settings import EngineSettings
from .offsets import milliseconds
from .output import plain_console, plain_table

if TYPE_CHECKING:
    from ..history.backfill import PreparedPlan
    from ..history.plan import BackfillPlan, Bound
    from ..strategy import Strategy

_FIRST = (
    "config", "topics", "group", "bootstrap_servers", "begin", "until", "engine", "workers", "rate",
    "archive", "archive_columns", "dry_run", "http_port", "log_level",
)  # fmt: skip
_OURS = ("auto_offset_reset", "group_instance_id", "history", "on_out_of_range", "until_caught_up")


@settings_flags(WORKER, positional="strategy", without=_OURS, first=_FIRST)
def backfill(
    strategy: str | None = None,
    /,
    *,
    given: Given[Settings],
    begin: Annotated[str, Parameter("--from")] = "earliest",
    until: str = "now",
    engine: Literal["worker", "spark"] = "worker",
    spark: EngineSettings | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Read the history of topics into the table of a group that follows the present.

    It chooses one offset for each partition, the cut, and commits it as the start of the group. From then
    on workers of the group may run (`kmr run`): they begin at the cut. The history, up to the cut, is read
    by workers of the group GROUP.backfill, or by Spark (--engine spark, with --checkpoint). At the end a
    count proves that every offset of the history is in the table once, was filtered, or is a dead letter; the
    exit code is 1 if it is not.

    If the strategy has a Window or Distinct, workers of the group may run when the history is complete: they
    go on with the windows that are open at the cut, and with what Distinct remembers.

    Interrupt it at any time, in any way: the same command goes on where it was.

    Records that the topic does not have any more are read from Parquet files (--archive): they need columns
    for topic, partition, offset, key, value, timestamp and headers, or a path that says topic and partition.

    For example:

        kmr backfill hits:strategy --topic hits --group errors --dry-run
        kmr backfill hits:strategy --topic hits --group errors --workers 4

    Parameters
    ----------
    strategy
        The strategy: module:attribute. The current directory is searched first.
    begin
        Where the history begins: earliest, a time (ISO 8601, or milliseconds since 1970), or offsets by
        partition (0:1500,1:900).
    until
        The cut: now, which is the end of each log, a time, or offsets by partition.
    engine
        worker: as many processes as --workers says; spark: a query of Structured Streaming that ends.
    dry_run
        Print the plan, with records and bytes; change nothing.
    """
    settings = given.load(strategy=strategy)
    setup_logs(settings.log)
    bounds = (_bound("--from", begin, "earliest"), _bound("--until", until, "now"))
    reader = _engine(engine, spark, settings)
    loaded = strategy_of(settings, "backfill")
    remembers = bool(loaded.distincts) or loaded.window is not None
    wanted = WantedRange(*bounds, reader, remembers)
    if engine == "spark":
        from ..spark.engine.placement import require_runnable

        require_runnable(loaded)
    _require_sinks(loaded, settings)
    prepared = anyio.run(prepare, settings, wanted)
    _show_plan(prepared)
    if dry_run:
        plain_console().print("dry run: nothing was changed")
        return 0
    plan = anyio.run(begin_reading, settings, prepared)
    code = 0
    if prepared.done < plan.offsets:
        if spark is None:
            code = _read(given, settings)
        else:
            code = _read_by_spark(given, settings, loaded, spark, prepared)
    left = anyio.run(offsets_left, settings, plan)
    if left:
        plain_console(stderr=True).print(
            f"kmr: {left:,} of {plan.offsets:,} offsets are left; the same command goes on"
        )
        return code or 1
    anyio.run(hand_over, settings, plan)
    return _count(settings, loaded, plan)


def _require_sinks(strategy: Strategy, settings: Settings) -> None:
    """Raise StrategyError if a sink would stop the workers: before a cut is committed."""
    wrong = [f for f in anyio.run(check_sinks, strategy, settings) if f.level == "problem"]
    if wrong:
        raise StrategyError("; ".join(f"{found.subject}: {found.text}" for found in wrong))


def _read(given: Given[Settings], settings: Settings) -> int:
    """Read the history with workers; return their exit code."""
    from ..supervisor.command import run_workers

    flags = {**given.flags, **worker_flags(settings)}
    own = given.load(strategy=settings.strategy, **worker_flags(settings))
    return run_workers(own, given.config, flags, lambda work: beside(work, settings))


def _engine(engine: str, spark: EngineSettings | None, settings: Settings) -> str:
    """Return the engine, with its checkpoint: a run that goes on must have the same. Raises SettingsError."""
    if engine == "worker":
        if spark is not None:
            raise SettingsError("--checkpoint needs --engine spark")
        return engine
    require_extra("spark", "--engine spark")
    if settings.workers != 1 or settings.otel:
        raise SettingsError("--workers and --otel do not fit --engine spark: give --master")
    spark = spark or EngineSettings()
    if spark.trigger not in (EngineSettings.trigger, "available-now"):
        raise SettingsError(
            "--trigger does not fit a backfill: its micro-batches follow each other"
        )
    checkpoint = spark.checkpoint
    where = checkpoint if ":" in checkpoint else str(Path(checkpoint).resolve())
    return f"spark --checkpoint {where}"


def _read_by_spark(
    given: Given[Settings],
    settings: Settings,
    strategy: Strategy,
    spark: EngineSettings,
    prepared: PreparedPlan,
) -> int:
    """Read the history with Spark; return the exit code of its engine."""
    from ..spark.engine.engine import run_engine

    own = given.load(strategy=settings.strategy, group=history_group(settings.group), history=True)
    options = replace(spark, trigger="available-now", name=f"kmr-{own.group}")
    with watching(settings):
        return run_engine(strategy, own, options, spark_bounds(prepared))


def _count(settings: Settings, strategy: Strategy, plan: BackfillPlan) -> int:
    from ..history.audit import audit

    result = anyio.run(audit, settings, strategy, plan)
    console = plain_console()
    for line in result.lines():
        console.print(line)
    return 0 if result.is_complete else 1


def _show_plan(prepared: PreparedPlan) -> None:
    plan, archived = prepared.plan, prepared.archived
    console = plain_console()
    parts = ("In archive", "In topic") if archived else ()
    table = plain_table("Partition", "From", "Cut", "Offsets", *parts, "Bytes", left=("Partition",))
    for at, history in plan.histories.items():
        size = plan.sizes.get(at)
        divided = (archived[at] - history.first, history.until - archived[at]) if archived else ()
        table.add_row(
            Text(str(at)),
            f"{history.first:,}",
            f"{history.until:,}",
            f"{history.offsets:,}",
            *(f"{part:,}" for part in divided),
            "-" if size is None else decimal(size),
        )
    console.print(table)
    total = f", about {decimal(sum(plan.sizes.values()))}" if plan.sizes else ""
    console.print(
        f"{show_count(plan.offsets, 'offset')}{total}, read by group {history_group(plan.group)}"
    )
    if not prepared.is_new:
        console.print(
            f"it goes on: {prepared.done:,} offsets are done; --from and --until were given at its first run"
        )


def _bound(flag: str, text: str, word: str) -> Bound:
    """Parse a place. Raises SettingsError."""
    if text == word:
        return "start" if word == "earliest" else "end"
    pairs = [pair.partition(":") for pair in text.split(",")]
    if all(a.strip().isdecimal() and b.strip().isdecimal() for a, _, b in pairs):
        return {int(a): int(b) for a, _, b in pairs}
    try:
        return milliseconds(text, flag)
    except SettingsError:
        raise SettingsError(
            f"{flag} must be {word}, a time such as 2026-01-31T12:00:00Z or milliseconds since 1970, or "
            f"offsets by partition such as 0:1500,1:900, not {text!r}"
        ) from None
