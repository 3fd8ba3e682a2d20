"""Spark sessions: made when asked for, with the settings that the rest of this package counts on."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from framework.errors import KmrError
from framework.spark.home import lean_home
from framework.spark.jvm import find_jvm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

__all__ = [
    "SETTINGS",
    "SparkUnavailable",
    "is_connect",
    "is_local",
    "open_session",
    "running_session",
]

SETTINGS: Final[dict[str, str]] = {
    # A timestamp column means the same instant everywhere; our batches carry UTC.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Larger local relations are shipped as files, not as literals in the plan: else 1M rows do not fit
    # a driver of the default size.
    "spark.sql.execution.arrow.localRelationThreshold": "1MB",
}
"""Set for every session, also for one of somebody else's that is reused."""

_LAUNCH: Final[dict[str, str]] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    # Python processes live on between tasks: they keep connections and compiled code.
    "spark.python.worker.reuse": "true",
}
_LOOPBACK: Final = "127.0.0.1"
_LOCAL: Final = re.compile(r"local(\[.*\])?$")
_ON_LOOPBACK: Final = re.compile(r"local(\[.*\])?$|spark://(127\.0\.0\.1|localhost)(:|$)")

# What Spark prepends to the user's own `spark.driver.extraJavaOptions`.
_JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
# The first compiler only. The second one takes half of all processor time of a session's first minute,
# and pays off in code that sees every record.
_PLANNING_ONLY: Final = "-XX:TieredStopAtLevel=1"


class SparkUnavailable(KmrError):
    """PySpark is not installed, or Spark does not start or answer; says what to do."""


def is_local(master: str | None) -> bool:
    """Whether tasks run in this process' own JVM: `local`, `local[N]`, `local[*]`."""
    return master is not None and _LOCAL.match(master) is not None


def is_connect(master: str | None) -> bool:
    """Whether this is the address of a Spark Connect server, `sc://host:port`."""
    return master is not None and master.startswith("sc://")


def open_session(
    master: str | None = None,
    *,
    name: str = "kmr",
    settings: Mapping[str, str] | None = None,
    planning_only: bool = False,
) -> SparkSession:
    """The running session of this process if there is one, whichever thread made it; else a new one.

    Args:
        master: `local[N]`, `spark://host:port`, `sc://host:port` (Spark Connect: no JVM here, and always a
            new session), or any other master that Spark knows. None: what `spark-submit` says, else
            `local[*]`.
        name: of the application, as Spark's page shows it.
        settings: more of Spark's own; those of the JVM (memory, extraJavaOptions, jars) count only for
            the first session of a process.
        planning_only: records do not go through the JVM of a local master, which only plans: it starts
            sooner, and leaves processors to Python.

    Raises:
        JvmNotFound: there is no Java.
        SparkUnavailable: PySpark is missing; Spark does not start; another session runs on another master.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise SparkUnavailable("PySpark is not installed: pip install 'pyspark>=4.2'")
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
    """The session that runs in this process, whichever thread made it (Spark's own answer is per thread)."""
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
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.appName(name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted and SparkContext._gateway is None:  # noqa: SLF001  whether a JVM runs already
        # Not `find_jvm` under spark-submit: there the JVM has started us.
        os.environ["JAVA_HOME"] = str(find_jvm().home)
    if master is None and not submitted:
        master = "local[*]"
    launch = dict(_LAUNCH)
    if master is not None:
        builder = builder.master(master)
        if _ON_LOOPBACK.match(master):
            # Else Spark takes the host's name, which need not resolve, or is open to the network.
            os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
            launch |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
            launch["spark.ui.enabled"] = "false"
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    for key, value in (launch | dict(settings)).items():
        builder = builder.config(key, value)
    with _home(master):
        session: SparkSession = builder.getOrCreate()
    return session


@contextmanager
def _home(master: str | None) -> Iterator[None]:
    """SPARK_HOME for the JVM that is started inside, where its Python processes are on this machine too."""
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
    missing = [
        module
        for module in ("grpc", "grpc_status", "google.rpc", "zstandard")
        if not _importable(module)
    ]
    if missing:
        raise SparkUnavailable(
            f"Spark Connect ({url}) needs more packages: pip install 'pyspark[connect]'"
        )
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.remote(url).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    # Not `getOrCreate`: the session that is there may be one of another server.
    session: SparkSession = builder.create()
    return session


def _reuse(session: SparkSession, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    """A session that is there already, with our settings where it takes them while it runs."""
    if master is not None:
        classic = hasattr(session, "_jsparkSession")
        current = session.sparkContext.master if classic else "Spark Connect"
        if current != master:
            raise SparkUnavailable(
                f"a Spark session runs on {current} in this process, not on {master}; stop it first"
            )
    for key, value in {**SETTINGS, **settings}.items():
        if session.conf.isModifiable(key):
            session.conf.set(key, value)
    return session


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(java if java is not None else error).splitlines()[0]
