"""`python -m demo`: see README.md. Exit code 0 only if both engines delivered each record once."""

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

from demo.commands import how_to_get_java, how_to_go_on
from demo.display import Display
from demo.flights import load_flights
from demo.processes import ChildFailed, Children
from demo.report import report
from demo.services import Services
from demo.spark import SPARK, SparkHalf
from demo.workers import WORKERS, WorkerHalf
from kmr.errors import KmrError
from kmr.spark.jvm import JvmNotFound, find_jvm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyio.abc import TaskStatus

DIRECTORY = Path(".kmr/demo")


async def demo(console: Console, children: Children) -> int:
    """Run the demo; returns the exit code."""
    console.print(
        "[bold]kafka-map-reduce[/bold]: one strategy on workers, then on Spark: "
        "topic -> ClickHouse\n"
    )
    problem = await anyio.to_thread.run_sync(_why_no_spark)
    if problem is not None:
        _tell(console, f"Only the workers' half runs. {problem}\n")
    flights = load_flights()
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    async with children:
        services = Services(DIRECTORY, children)
        with Display(console, flights.num_rows, spark=problem is None) as display:
            await services.start(WORKERS.database, SPARK.database)
            display.event(f"broker on {services.broker}, ClickHouse on {services.clickhouse_url}")
            outcomes = [await WorkerHalf(services, flights, display, children).run()]
            if problem is None:
                spark = SparkHalf(DIRECTORY, services, flights.num_rows, display, children)
                try:
                    outcomes.append(await spark.run())
                except ChildFailed as error:
                    problem = f"Spark's half failed: {error}"
                    display.event(problem.splitlines()[0])
        console.print()
        passed = await anyio.to_thread.run_sync(
            report, console, services.clickhouse_url, outcomes, flights.num_rows
        )
    how_to_go_on(console, DIRECTORY, flights.num_rows, spark=len(outcomes) > 1)
    if not passed:
        _tell(console, "\nThe checks found missing, doubled or differing records.")
    if problem is not None:
        _tell(console, f"\nOnly the workers' half is there. {problem}")
    return 0 if passed and problem is None else 1


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
