"""Spark sessions: how one is opened, how the writers of a process share one, and what its errors mean."""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import structlog

from .._extras import require_extra
from ..errors import KmrError, SinkError, StrategyError
from .jvm import find_jvm, lean_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

_log = structlog.get_logger(__name__)

SETTINGS: Final[dict[str, str]] = {
    # A timestamp is the same instant everywhere; our batches have UTC.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Ship larger local relations as files. As literals in the plan, 1M rows do not fit into a driver of
    # the default size.
    "spark.sql.execution.arrow.localRelationThreshold": "1MB",
}
"""Settings of every session, also of a running one that is reused."""

_LAUNCH: Final[dict[str, str]] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    # Python processes keep connections and compiled code between tasks.
    "spark.python.worker.reuse": "true",
}
# They print each exception with its stack trace, 20 KB, also one that is caught.
_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_LOOPBACK: Final = "127.0.0.1"
_LOCAL: Final = re.compile(r"local(\[.*\])?$")
_ON_LOOPBACK: Final = re.compile(r"local(\[.*\])?$|spark://(127\.0\.0\.1|localhost)(:|$)")

# Spark puts these in front of the user's `spark.driver.extraJavaOptions`.
_JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
# Only the first compiler. The second one takes half of the processor time of a session's first minute,
# and pays off only if records go through the JVM.
_PLANNING_ONLY: Final = "-XX:TieredStopAtLevel=1"


class SparkUnavailable(KmrError):
    """Spark does not start or answer."""


class QueryFailed(KmrError):
    """The query ended with an error that is not a KmrError."""


def is_local(master: str | None) -> bool:
    """Return whether tasks run on this process's JVM: `local`, `local[N]`, `local[*]`."""
    return master is not None and _LOCAL.match(master) is not None


def is_connect(master: str | None) -> bool:
    """Return whether this is the address of a Spark Connect server, `sc://host:port`."""
    return master is not None and master.startswith("sc://")


def open_session(
    master: str | None = None,
    *,
    name: str = "kmr",
    settings: Mapping[str, str] | None = None,
    planning_only: bool = False,
) -> SparkSession:
    """Return the session that runs in this process, in whichever thread it was made; else open one.

    Args:
        master: `local[N]`, `spark://host:port`, `sc://host:port` (Spark Connect: no JVM here, and always a
            new session), or any other master that Spark knows. None: the master of `spark-submit`, else
            `local[*]`.
        name: the application's name on Spark's page.
        settings: further settings of Spark; those of the JVM (memory, extraJavaOptions, jars) have an
            effect only for the first session of a process.
        planning_only: no records go through the JVM of a local master. It then starts sooner, and leaves
            processors to Python.

    Raises:
        MissingExtra: PySpark is not installed.
        JvmNotFound: there is no Java.
        SparkUnavailable: Spark does not start, or this process has a session on another master.
    """
    require_extra("spark", "Spark")
    from pyspark.errors import PySparkException

    wanted = {**SETTINGS, **(settings or {})}
    try:
        if is_connect(master):
            return _connect(str(master), name, wanted)
        running = running_session()
        if running is not None:
            return _reuse(running, master, settings or {})
        if planning_only and is_local(master or "local"):
            wanted = {_JAVA_OPTIONS: _PLANNING_ONLY, **wanted}
        return _launch(master, name, wanted)
    except KmrError:
        raise
    except (PySparkException, RuntimeError, OSError) as error:
        raise SparkUnavailable(f"no Spark session at {master or 'local[*]'}: {error}") from error
    except Exception as error:
        if type(error).__module__.startswith("py4j"):
            raise SparkUnavailable(
                f"no Spark session at {master or 'local[*]'}: {_first_line(error)}"
            ) from error
        raise


def running_session() -> SparkSession | None:
    """Return the session of this process, from any thread: Spark's own `getActiveSession` is per thread.

    Raises:
        MissingExtra: PySpark is not installed.
    """
    require_extra("spark", "Spark")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    known: Any = SparkSession
    if SparkContext._active_spark_context is not None:  # noqa: SLF001
        running: SparkSession | None = SparkSession.getActiveSession() or known._instantiatedSession  # noqa: SLF001
        return running
    connect = sys.modules.get("pyspark.sql.connect.session")
    if connect is None:
        return None
    found: SparkSession | None = (
        connect.SparkSession.getActiveSession() or connect.SparkSession._get_default_session()  # noqa: SLF001
    )
    return found


def _launch(master: str | None, name: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.appName(name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted and SparkContext._gateway is None:  # noqa: SLF001  whether a JVM runs already
        # Under spark-submit, the JVM has started this process.
        os.environ["JAVA_HOME"] = str(find_jvm().home)
    if master is None and not submitted:
        master = "local[*]"
    launch = dict(_LAUNCH)
    if master is not None:
        builder = builder.master(master)
        if _ON_LOOPBACK.match(master):
            # By default Spark listens on the host's name, which may not resolve, or is open to the network.
            os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
            launch |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
            launch["spark.ui.enabled"] = "false"
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    for key, value in (launch | dict(settings)).items():
        builder = builder.config(key, value)
    for logger in _LOGGERS:
        PySparkLogger.getLogger(logger).disabled = True
    with _home(master):
        session: SparkSession = builder.getOrCreate()
    return session


@contextmanager
def _home(master: str | None) -> Iterator[None]:
    """Set SPARK_HOME for the JVM that is started inside, for a local master."""
    import pyspark

    home = lean_home(Path(pyspark.__file__).parent) if is_local(master) else None
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def _connect(url: str, name: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.remote(url).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    # Not `getOrCreate`, which may return the session of another server.
    try:
        session: SparkSession = builder.create()
    except ImportError as error:
        raise SparkUnavailable(
            f"Spark Connect ({url}) needs more packages: pip install 'pyspark[connect]'"
        ) from error
    return session


def _reuse(session: SparkSession, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    """Apply the settings that a running session accepts."""
    if master is not None:
        classic = hasattr(session, "_jsparkSession")
        current = session.sparkContext.master if classic else "Spark Connect"
        if current != master:
            raise SparkUnavailable(
                f"a Spark session runs on {current} in this process, not on {master}; stop it first"
            )
    apply_settings(session, settings)
    return session


def apply_settings(session: SparkSession, settings: Mapping[str, str] | None = None) -> None:
    """Apply ours and these settings to a session, but those that it accepts at its launch only."""
    for key, value in {**SETTINGS, **(settings or {})}.items():
        if session.conf.isModifiable(key):
            session.conf.set(key, value)


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(java if java is not None else error).splitlines()[0]


_GONE = ("SESSION_NOT_FOUND", "SESSION_CLOSED", "SESSION_CHANGED")


class SharedSession:
    """The session that all writers of a process share: the first one opens it, the last one stops it.

    A session that already runs in this process is used, and left running; but for a Spark Connect server a
    new one is always opened. Pickling keeps master and settings only. All methods may block for seconds;
    call them in a thread, from any thread.

    Args:
        master: as for `open_session`. A second master in one process is an error.
        settings: Spark's own.
    """

    def __init__(self, master: str | None, settings: Mapping[str, str]) -> None:
        self._master = master
        self._settings = dict(settings)
        self._given: SparkSession | None = None

    def __reduce__(self) -> tuple[type[SharedSession], tuple[str | None, dict[str, str]]]:
        return SharedSession, (self._master, self._settings)

    def __enter__(self) -> SparkSession:
        self.acquire()
        return self.get()

    def __exit__(self, *_: object) -> None:
        self.release()

    def use(self, session: SparkSession) -> None:
        """Use this session, which its owner stops, instead of one for `master`."""
        self._given = session

    def acquire(self) -> None:
        """Register a user of the session; open it for the first one.

        Raises:
            SparkUnavailable: Spark does not start or answer, or runs on another master in this process.
            StrategyError: another writer of this process uses another master.
        """
        if self._given is None:
            _of_process().acquire(self._master, self._settings)

    def get(self) -> SparkSession:
        """Return the session; open a new one if the server has forgotten it."""
        return self._given or _of_process().get(self._master, self._settings)

    def release(self) -> None:
        """Unregister a user; after the last one, stop the session if it was opened here."""
        if self._given is None:
            _of_process().release()

    def translate(self, error: Exception) -> Exception:
        """Convert an error of Spark that no retry fixes to a KmrError; return any other error as it is."""
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
            return SinkError("the JVM of the Spark session has ended; restart the worker")
        return error


class _ProcessSession:
    """The state behind `SharedSession`. Thread-safe."""

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
        # A Spark Connect client closes itself when the server answers for another session.
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
        """Drop the session, which the server no longer has; the next `get` opens another."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):  # the server has stopped it already
                session.stop()


def _of_process() -> _ProcessSession:
    return _process_session(os.getpid())


@lru_cache(maxsize=1)
def _process_session(_process: int) -> _ProcessSession:
    return _ProcessSession()


_NOISY: Final = (
    # Prints every failure with its Java stack trace.
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    # Warns about adaptive execution, for every query.
    "org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream",
)
_SLOW_START: Final = "Python worker failed to connect back"
_ERROR_LINE: Final = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")


def is_slow_start(error: BaseException) -> bool:
    """Return whether a Python process needed more than the ten seconds that Spark gives it to start."""
    return _SLOW_START in str(error)


def silence_spark(session: SparkSession) -> None:
    """Turn off Spark's loggers for errors that the engine reports."""
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001  the only way to Log4j
    log4j = jvm.org.apache.logging.log4j
    for name in _NOISY:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def explain_error(error: BaseException) -> KmrError:
    """Convert an error of Spark to a KmrError of one line; a KmrError stays as it is."""
    if isinstance(error, KmrError):
        return error
    text = str(error)
    _log.debug("the query failed", error=text)
    # The text of a Python error inside Spark ends with its traceback: its last line is the error.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        name, _, message = line.partition(": ")
        if name.startswith("kmr.errors."):
            return KmrError(message)
        if _ERROR_LINE.match(line):
            return QueryFailed(f"a task of the query failed: {line}")
    return QueryFailed(f"the query failed: {lines[0] if lines else type(error).__name__}")
