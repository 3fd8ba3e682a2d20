"""One Spark session for all writers of a process: made when the first is opened, ended with the last."""

from __future__ import annotations

import os
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

from framework.errors import KmrError, SinkError, StrategyError
from framework.spark.session import is_connect, open_session, running_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["SharedSession"]

_GONE = ("SESSION_NOT_FOUND", "SESSION_CLOSED", "SESSION_CHANGED")


class SharedSession:
    """The session of this process, as one writer and its copies use it, in whichever thread.

    A session that runs in this process already is used, and left running; but a Spark Connect server is
    always asked for a session of its own. Everything here may take seconds: call it in a thread.

    Args:
        master: as for `open_session`. Writers of one process that name different ones are refused.
        settings: Spark's own.
    """

    def __init__(self, master: str | None, settings: Mapping[str, str]) -> None:
        self._master = master
        self._settings = dict(settings)
        self._given: SparkSession | None = None

    def __reduce__(self) -> tuple[type[SharedSession], tuple[str | None, dict[str, str]]]:
        # Another process has a session of its own.
        return SharedSession, (self._master, self._settings)

    def use(self, session: SparkSession) -> None:
        """Take this session, which somebody else ends, whatever `master` says."""
        self._given = session

    def acquire(self) -> None:
        """Use it from now on.

        Raises:
            SparkUnavailable: Spark does not start or answer, or runs on another master in this process.
            StrategyError: another writer of this process uses another master.
        """
        if self._given is None:
            _of_process().acquire(self._master, self._settings)

    def get(self) -> SparkSession:
        """The session, opened anew if the server has forgotten it."""
        return self._given or _of_process().get(self._master, self._settings)

    def release(self) -> None:
        """Use it no longer; the last one ends it, if it was opened here."""
        if self._given is None:
            _of_process().release()

    def translate(self, error: Exception) -> Exception:
        """What an error of Spark means: an error that no retry mends, or the same, for another attempt."""
        if isinstance(error, KmrError):
            return error
        from pyspark.errors import AnalysisException

        first = (str(error) or type(error).__name__).splitlines()[0]
        if any(name in first for name in _GONE):
            _of_process().forget()
        elif isinstance(error, AnalysisException):
            return StrategyError(f"Spark refuses: {first}")
        elif type(error).__name__ == "Py4JNetworkError" or (
            isinstance(error, ConnectionError) and not is_connect(self._master)
        ):
            return SinkError("the JVM of the Spark session has ended; start the worker anew")
        return error


class _ProcessSession:
    """What the writers of a process share. May be used from several threads at once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._master: str | None = None
        self._session: SparkSession | None = None
        self._ours = False

    def acquire(self, master: str | None, settings: Mapping[str, str]) -> None:
        with self._lock:
            self._open(master, settings)
            self._users += 1

    def get(self, master: str | None, settings: Mapping[str, str]) -> SparkSession:
        with self._lock:
            return self._open(master, settings)

    def _open(self, master: str | None, settings: Mapping[str, str]) -> SparkSession:
        # A client of Spark Connect closes itself when it hears of another session than its own.
        if self._session is None or getattr(self._session, "is_stopped", None) is True:
            ours = is_connect(master) or running_session() is None
            self._session = open_session(master, settings=settings)
            classic = hasattr(self._session, "_jsparkSession")
            self._ours = ours
            self._master = self._session.sparkContext.master if classic else master
        elif None not in (master, self._master) and master != self._master:
            raise StrategyError(
                f"a SparkWriter of this process uses {self._master}, so another one cannot use {master}: "
                "they share one session; name one master, or leave it out"
            )
        return self._session

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users <= 0 and self._session is not None:
                session, self._session = self._session, None
                if self._ours:
                    session.stop()

    def forget(self) -> None:
        """The server does not know the session any more: the next one who asks opens another."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            try:
                session.stop()
            except Exception:  # noqa: BLE001  it is gone already
                return


def _of_process() -> _ProcessSession:
    return _process_session(os.getpid())


@lru_cache(maxsize=1)
def _process_session(_process: int) -> _ProcessSession:
    return _ProcessSession()
