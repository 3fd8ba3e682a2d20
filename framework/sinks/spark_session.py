"""One Spark session for all copies of a writer: made when the first is opened, ended with the last."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from framework.errors import KmrError, SinkError, StrategyError
from framework.spark.session import open_session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["SharedSession"]

_GONE = ("SESSION_NOT_FOUND", "SESSION_CLOSED", "SESSION_CHANGED")


class SharedSession:
    """A session that is opened once, however many use it, in whichever thread.

    A session that runs in this process already is used, and left running. Everything here may take
    seconds: call it in a thread.

    Args:
        master: as for `open_session`.
        settings: Spark's own.
    """

    def __init__(self, master: str | None, settings: Mapping[str, str]) -> None:
        self._master = master
        self._settings = dict(settings)
        self._lock = Lock()
        self._users = 0
        self._session: SparkSession | None = None
        self._ours = False

    def __reduce__(self) -> tuple[type[SharedSession], tuple[str | None, dict[str, str]]]:
        # Another process has a session of its own.
        return SharedSession, (self._master, self._settings)

    def acquire(self) -> None:
        """Use it from now on.

        Raises:
            SparkUnavailable: Spark does not start or answer.
        """
        self.get()
        with self._lock:
            self._users += 1

    def get(self) -> SparkSession:
        """The session, opened anew if the server has forgotten it."""
        with self._lock:
            # A client of Spark Connect closes itself when it hears of another session than its own.
            if self._session is None or getattr(self._session, "is_stopped", None) is True:
                ours = not _is_running()
                self._session = open_session(self._master, settings=self._settings)
                self._ours = ours
            return self._session

    def release(self) -> None:
        """Use it no longer; the last one ends it, if it was opened here."""
        with self._lock:
            self._users -= 1
            if self._users <= 0 and self._session is not None:
                session, self._session = self._session, None
                if self._ours:
                    session.stop()

    def translate(self, error: Exception) -> Exception:
        """What an error of Spark means: an error that no retry mends, or the same, for another attempt."""
        if isinstance(error, KmrError):
            return error
        from pyspark.errors import AnalysisException

        first = (str(error) or type(error).__name__).splitlines()[0]
        if any(name in first for name in _GONE):
            self._forget()
        elif isinstance(error, AnalysisException):
            return StrategyError(f"Spark refuses: {first}")
        elif type(error).__name__ == "Py4JNetworkError" or (
            isinstance(error, ConnectionError) and not self._is_connect()
        ):
            return SinkError("the JVM of the Spark session has ended; start the worker anew")
        return error

    def _is_connect(self) -> bool:
        return self._session is not None and not hasattr(self._session, "_jsparkSession")

    def _forget(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            try:
                session.stop()
            except Exception:  # noqa: BLE001  it is gone already
                return


def _is_running() -> bool:
    from pyspark.sql import SparkSession

    # The active session is known to the thread that made it only.
    known = getattr(SparkSession, "_instantiatedSession", None)
    return known is not None or SparkSession.getActiveSession() is not None
