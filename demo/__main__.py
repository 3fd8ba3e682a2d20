"""`python -m demo`: see README.md. Exit code 0 only if Spark and the workers delivered each record once."""

from __future__ import annotations

import fcntl
import shutil
import signal
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from rich.console import Console

from demo.commands import how_to_get_java, how_to_go_on
from demo.display import Display
from demo.flights import load_flights
from demo.history import History
from demo.outcome import Standing
from demo.present import Present
from demo.processes import STALL, ChildFailed, Children
from demo.producing import produce
from demo.report import report
from demo.results import row_counter
from demo.services import Services
from kmr.errors import KmrError
from kmr.spark.jvm import JvmNotFound, find_jvm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyio.abc import TaskStatus

    from demo.outcome import Cut, Outcome

DIRECTORY = Path(".kmr/demo")
_POLL: Final = 0.2  # seconds


async def demo(console: Console, children: Children) -> int:
    """Run the demo; returns the exit code."""
    console.print(
        "[bold]kafka-map-reduce[/bold]: one strategy; Spark reads the history, workers follow the present: "
        "topic -> ClickHouse\n"
    )
    problem = await anyio.to_thread.run_sync(_why_no_spark)
    if problem is not None:
        problem = f"A worker reads the history, not Spark. {problem}"
        _tell(console, f"{problem}\n")
    flights = load_flights()
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    standing, half = Standing(), flights.num_rows // 2
    async with children:
        services = Services(DIRECTORY, children)
        with Display(console, flights.num_rows, half) as display:
            await services.start()
            display.event(f"broker on {services.broker}, ClickHouse on {services.clickhouse_url}")
            await produce(services.broker, flights.slice(0, half), standing, None)
            display.event(f"the topic has a history of {standing.produced:,} records")
            parts = services, standing, display, children
            history = History(DIRECTORY, *parts, spark=problem is None)
            cut = await history.begin()
            present = Present(flights.slice(half), *parts)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_watch, cut, *parts)
                outcomes = await _beside(history, present)
                tasks.cancel_scope.cancel()
        console.print()
        passed = await anyio.to_thread.run_sync(
            report, console, services.clickhouse_url, cut, outcomes, flights.num_rows
        )
    how_to_go_on(console, DIRECTORY, flights.num_rows, spark=problem is None)
    if not passed:
        _tell(console, "\nThe checks found missing or doubled records.")
    problem = problem or outcomes[0].problem
    if problem is not None:
        _tell(console, f"\n{problem}")
    return 0 if passed and problem is None else 1


async def _beside(history: History, present: Present) -> list[Outcome]:
    """Run both parts at once; return the outcome of the history, then that of the present."""
    outcomes: list[Outcome] = []

    async def read() -> None:
        outcomes.insert(0, await history.run())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        outcomes.append(await present.run())
    return outcomes


async def _watch(
    cut: Cut, services: Services, standing: Standing, display: Display, children: Children
) -> None:
    """Count rows and show how far everything is.

    Raises:
        ChildFailed: a process ended with an error, or no figure has moved for `STALL` seconds.
    """
    seen, moved = replace(standing), anyio.current_time()
    async with row_counter(services.clickhouse_url, cut) as count:
        while True:
            children.check()
            standing.history, standing.present = await count()
            display.show(standing)
            if standing != seen:
                seen, moved = replace(standing), anyio.current_time()
            elif anyio.current_time() - moved > STALL:
                raise ChildFailed(f"nothing has moved for {STALL:.0f} s; see {children.logs}")
            await anyio.sleep(_POLL)


def _why_no_spark() -> str | None:
    """None if Spark can run here."""
    try:
        find_jvm()
    except JvmNotFound as error:
        return f"{error}. Here: {how_to_get_java()}"
    return None


def _tell(console: Console, message: str) -> None:
    console.print(message, style="bold red", markup=False, highlight=False, soft_wrap=True)


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
    """The demo; Ctrl-C and SIGTERM stop it and everything that it started, a second one at once."""
    codes: list[int] = []
    children = Children(DIRECTORY / "logs")
    work = anyio.CancelScope()

    async def obey(*, task_status: TaskStatus[None]) -> None:
        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup
            wanted.append(signal.SIGHUP)
        with anyio.open_signal_receiver(*wanted) as signals:
            task_status.started()
            async for number in signals:
                if codes:
                    children.kill()
                    continue
                codes.append(128 + number)
                work.cancel()
                console.print("\nstopping everything that the demo started ...")

    async with anyio.create_task_group() as tasks:
        await tasks.start(obey)
        with work:
            code = await demo(console, children)
            codes = codes or [code]
        tasks.cancel_scope.cancel()
    return codes[0]


def main() -> int:
    """Run, and say in one message what went wrong."""
    console = Console()
    try:
        with only_demo_here():
            return anyio.run(demo_until_signal, console)
    except* (ChildFailed, FileNotFoundError, KmrError) as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        Console(stderr=True).print(f"demo: {error}", markup=False, highlight=False)
    return 1


if __name__ == "__main__":
    sys.exit(main())
