"""`kmr run`: run a strategy as a member of a consumer group."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from cyclopts import Parameter

from .._extras import require_extra
from ..config.flags import Given, settings_flags
from ..errors import SettingsError
from ..loading import strategy_of
from ..observe.logs import setup_logs
from ..settings import WORKER, Settings
from ..spark.engine.engine_settings import EngineSettings

_FIRST = (
    "config", "topics", "group", "bootstrap_servers", "auto_offset_reset", "until_caught_up", "workers",
    "executor", "http_port", "log_level", "log_format", "engine",
)  # fmt: skip


@settings_flags(WORKER, positional="strategy", first=_FIRST)
def run(
    strategy: str | None = None,
    /,
    *,
    given: Given[Settings],
    engine: Annotated[
        Literal["worker", "spark"],
        Parameter(help="worker: this process; spark: a query of Structured Streaming."),
    ] = "worker",
    spark: EngineSettings | None = None,
) -> int:
    """Run a strategy as a member of a consumer group, until a signal.

    The first SIGTERM or SIGINT (Ctrl-C) drains work in flight, commits and leaves the group. A second one
    ends the process at once; records that were not committed are delivered again. SIGHUP drains too, and asks
    for a new start by exit code 129; with several --workers it replaces one after the other.

    Exit codes: 0 drained, 1 failed, 2 wrong usage or settings, 3 not drained within
    --shutdown-deadline, 129 drained because of SIGHUP, 130 or 143 ended by the second signal.

    With --engine spark it is a query of Structured Streaming: --checkpoint has its progress, and a drain
    finishes the running micro-batch. With --trigger available-now it exits at the end of the topic.

    For example:

        kmr run hits:strategy --topic hits --group errors --bootstrap-servers kafka-1:9092
        kmr run --config kmr.toml --http-port 8080
        kmr run hits:strategy --topic hits --group errors --until-caught-up

    Parameters
    ----------
    strategy
        The strategy: module:attribute. The current directory is searched first.
    """
    if engine == "worker" and spark is not None:
        raise SettingsError("--checkpoint needs --engine spark")
    settings = given.load(strategy=strategy)
    if engine == "spark" and settings.workers != 1:
        raise SettingsError(
            f"workers: {settings.workers} does not fit --engine spark, which shares its work among "
            "executors: leave out --workers, and give --master"
        )
    if engine == "spark" and settings.until_caught_up:
        raise SettingsError("--until-caught-up: with --engine spark use --trigger available-now")
    setup_logs(settings.log)
    if settings.otel:
        if engine == "spark":
            raise SettingsError("--otel does not fit --engine spark: its tasks make no spans")
        require_extra("otel", "--otel")
    if settings.worker_count > 1 and settings.strategy is not None:
        from ..supervisor.command import run_workers

        return run_workers(settings, given.config, given.flags)
    loaded = strategy_of(settings, "run")
    # Imported last: it takes a second, and mistakes above should be reported at once.
    if engine == "spark":
        require_extra("spark", "--engine spark")
        options = replace(spark or EngineSettings(), name=f"kmr-{settings.group}")
        from ..spark.engine.engine import run_engine
        from ..spark.engine.placement import require_runnable

        require_runnable(loaded)
        return run_engine(loaded, settings, options)
    from ..worker_process import run_worker

    return run_worker(loaded, settings)
