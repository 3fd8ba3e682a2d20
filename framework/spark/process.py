"""The Spark engine as a whole process: signals and exit codes, those of a worker."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from framework.errors import DeadlineExceeded, KmrError
from framework.spark.engine import SparkEngine
from framework.worker import SAME_SIGNAL, ExitCode

if TYPE_CHECKING:
    from framework.settings import Settings
    from framework.spark.settings import EngineSettings
    from framework.strategy import Strategy

__all__ = ["run_engine"]


def run_engine(strategy: Strategy, settings: Settings, engine: EngineSettings) -> int:
    """Run the engine as a whole process: the first SIGTERM or SIGINT stops it, a second one ends it.

    Returns the exit code (`ExitCode`). An error that the user can mend is one message on stderr.
    """
    asked_at: list[float] = []
    reason: list[str] = []
    running: list[SparkEngine] = []

    def obey(number: int, _frame: object) -> None:
        now = time.monotonic()
        if not asked_at:
            asked_at.append(now)
            reason.append(signal.Signals(number).name)
            for runner in running:
                runner.shutdown(reason[0])
        elif now - asked_at[0] > SAME_SIGNAL:
            sys.stderr.flush()
            os._exit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, obey)
    try:
        session = engine.open_session(strategy)
        try:
            for number in before:
                signal.signal(number, obey)  # PySpark has put its own in place
            if not asked_at:
                running.append(SparkEngine(strategy, settings, engine, session=session))
                running[0].run()
        finally:
            session.stop()
    except KmrError as error:
        print(f"kmr: {error}", file=sys.stderr)  # noqa: T201  the user's message
        if isinstance(error, DeadlineExceeded):
            return ExitCode.DEADLINE_EXCEEDED
        return ExitCode.FAILED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return ExitCode.CLEAN
