"""`kmr run`: run a strategy as a member of a consumer group."""

from typing import Annotated, Literal

from cyclopts import Parameter

from framework.cli.flags import Given, with_settings
from framework.cli.spark_flags import SparkFlags
from framework.cli.strategies import load_strategy
from framework.errors import SettingsError
from framework.logs import setup_logs

__all__ = ["run"]


@with_settings()
def run(
    strategy: str | None = None,
    /,
    *,
    given: Given,
    engine: Annotated[
        Literal["worker", "spark"],
        Parameter(
            help="What runs it: worker, a process of its own, or spark, a query on a cluster."
        ),
    ] = "worker",
    spark: SparkFlags | None = None,
) -> int:
    """Run a strategy as a member of a consumer group, until a signal.

    The first SIGTERM or SIGINT (Ctrl-C) drains what is in flight, commits and leaves the group; a second
    one ends the process at once, and what was not committed is delivered again.

    Exit codes: 0 drained, 1 failed, 2 wrong usage or settings, 3 not drained within
    --shutdown-deadline, 130 or 143 ended by the second signal.

    With --engine spark it is a query of Structured Streaming: --checkpoint says where it stands, and a
    drain is the end of the micro-batch under way. With --trigger available-now it ends by itself.

    Parameters
    ----------
    strategy
        What to run: module:attribute. The current directory can be imported from.
    """
    spark = spark or SparkFlags()
    if engine == "worker":
        spark.refuse()
    settings = given.load(strategy=strategy)
    if settings.strategy is None:
        raise SettingsError(
            "no strategy: name one, as in `kmr run module:strategy`, or set KMR_STRATEGY, or write "
            "strategy under [kmr] in the TOML file"
        )
    setup_logs(settings.log)
    loaded = load_strategy(settings.strategy)
    loaded.validate()
    # Not before it is needed: it takes a second, and mistakes above should be told at once.
    if engine == "spark":
        options = spark.settings(settings)
        from framework.spark.checks import require_possible
        from framework.spark.process import run_engine

        require_possible(loaded)
        return run_engine(loaded, settings, options)
    from framework.worker import run_worker

    return run_worker(loaded, settings)
