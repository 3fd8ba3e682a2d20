"""`kmr top`: watch a running worker from a terminal."""

from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from framework.cli.watch import Watch
from framework.cli.watch_text import partitions_table, stages_table, summary

__all__ = ["top"]


def top(
    *,
    url: str = "http://127.0.0.1:8080",
    interval: float = 1.0,
    once: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Watch a running worker: its stages, its partitions and their lag, its rates.

    The worker must serve HTTP: `kmr run ... --http-port 8080`.

    Parameters
    ----------
    url
        Where the worker serves its status page.
    interval
        Seconds between two looks.
    once
        Print what is seen in one interval as plain text, and end.
    """
    watch = Watch(url)
    if once:
        view = watch.look_twice(interval)
        console = Console(highlight=False)
        console.print(summary(view))
        console.print(stages_table(view.status))
        console.print(partitions_table(view.status))
        return
    # Only the full-screen view needs it, and it takes a third of a second.
    from framework.cli.top_app import TopApp

    TopApp(watch, interval).run()
