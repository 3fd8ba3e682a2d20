"""`python -m demo`: see README.md. Exit code 0 only if nothing is missing and nothing is doubled."""

from __future__ import annotations

import fcntl
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from rich.console import Console

from demo.display import Display
from demo.flights import load_flights
from demo.processes import ChildFailed, Children
from demo.report import how_to_go_on, show_carriers
from demo.scenario import Scenario
from framework.cli.check import check, show

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTORY = Path(".kmr/demo")


async def demo(console: Console) -> int:
    """Run the demo; returns the exit code."""
    console.print("[bold]kafka-map-reduce[/bold]: broker -> map -> reduce -> ClickHouse\n")
    flights = load_flights()
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    async with Children(DIRECTORY / "logs") as children:
        with Display(console, flights.num_rows) as display:
            scenario = Scenario(DIRECTORY, flights, display, children)
            outcome = await scenario.run()
        result = await anyio.to_thread.run_sync(
            lambda: check(url=scenario.clickhouse_url, table="flights")
        )
        console.print()
        show(result, console)
        show_carriers(console, scenario.clickhouse_url)
    rate = outcome.records / outcome.seconds
    console.print(
        f"\n{outcome.records:,} records in {outcome.seconds:.1f} s ({rate:,.0f} records/s; the producer is "
        "slowed down so that you can watch, see `make bench`)\n",
        highlight=False,
        soft_wrap=True,
    )
    if not result.clean:
        console.print("[bold red]The checks found missing or doubled records.[/bold red]")
        return 1
    how_to_go_on(console, DIRECTORY)
    return 0


@contextmanager
def only_demo_here() -> Iterator[None]:
    """Two demos in one folder would delete each other's data."""
    DIRECTORY.parent.mkdir(parents=True, exist_ok=True)
    with DIRECTORY.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ChildFailed(f"another demo is running in {Path.cwd()}; wait for it") from None
        yield


async def demo_until_signal(console: Console) -> int:
    """The demo; Ctrl-C and SIGTERM stop it and everything that it started."""
    codes: list[int] = []

    async def stop_on_signal(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                console.print("\nstopping everything that the demo started ...")
                codes.append(128 + number)
                scope.cancel()
                return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_on_signal, tasks.cancel_scope)
        codes.append(await demo(console))
        tasks.cancel_scope.cancel()
    return codes[0]


def main() -> int:
    """Run, and say in one message what went wrong."""
    console = Console()
    try:
        with only_demo_here():
            return anyio.run(demo_until_signal, console)
    except* (ChildFailed, FileNotFoundError, TimeoutError) as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        Console(stderr=True).print(f"demo: {error}", markup=False, highlight=False)
    return 1


if __name__ == "__main__":
    sys.exit(main())
