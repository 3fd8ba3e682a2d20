"""What every test shares."""

from __future__ import annotations

import gc
import inspect
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hypothesis
import psycopg
import pytest
import structlog

from chaos.postgres import PostgresServer
from tests.class_archive import QUICK_JVM, class_archive
from tests.examples import PROFILE, examples
from tests.kernels import compile_kernels
from tests.schedule import pytest_collection_modifyitems, pytest_xdist_make_scheduler

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pyspark.sql import SparkSession

    from kmr.broker import Broker
    from kmr.registry.server import SchemaRegistry
    from kmr.testing import StartBroker, VirtualClock

__all__ = ["pytest_collection_modifyitems", "pytest_xdist_make_scheduler"]

# Tests share the machine, so the time of one example says nothing. The suite tries the same examples in
# every run, so that it is green or red for a reason; `make search` tries others, and more.
hypothesis.settings.register_profile(
    "same examples", deadline=None, derandomize=True, max_examples=examples(100)
)
hypothesis.settings.register_profile(
    "search", deadline=None, print_blob=True, max_examples=examples(100)
)
hypothesis.settings.load_profile(PROFILE)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that have a property or a state machine inside, so that `make search` runs them too.

    Hypothesis marks only tests that `given` decorates.
    """
    if isinstance(item, pytest.Function):
        function = inspect.unwrap(item.function)
        names = {*function.__code__.co_names} & {*function.__globals__}
        if names & {"given", "run_state_machine_as_test", "examples"}:
            item.add_marker("hypothesis")


ROOT = Path(__file__).parents[1]
_MEMORY = Path("/dev/shm")
_ROOM = 4 * 2**30  # bytes


def pytest_configure(config: pytest.Config) -> None:
    """Let processes of tests hear SIGHUP, which they would not in a run under nohup; choose a directory.

    If several processes run tests, the first one compiles the kernels before it starts the others.

    Tests' files are in memory if there is room: brokers sync theirs a hundred thousand times. The tests of
    power losses simulate the disk, so they lose nothing by it.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if getattr(config.option, "numprocesses", None) and not config.option.collectonly:
        compile_kernels()
    if not _MEMORY.is_dir():
        return
    found = os.statvfs(_MEMORY)
    if found.f_bavail * found.f_frsize >= _ROOM and not found.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules are imported, and none of what they keep from then on."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def anyio_backend() -> str:
    """The engine builds on aiokafka, so asyncio is the only backend."""
    return "asyncio"


@pytest.fixture
def broker(kmr_broker: Broker) -> Broker:
    return kmr_broker


@pytest.fixture
def start_broker(kmr_start_broker: StartBroker) -> StartBroker:
    return kmr_start_broker


@pytest.fixture
def registry_url(kmr_registry: SchemaRegistry) -> str:
    return kmr_registry.url


@pytest.fixture
def clock(kmr_clock: VirtualClock) -> VirtualClock:
    return kmr_clock


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """A shell has what it starts with `&` ignore Ctrl-C, as would the processes that tests press it in."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_WITHOUT = """
import sys

sys.modules["hypothesis"] = None


class NoPandas:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)


command = " ".join(sys.orig_argv)
worker = {"run", "backfill"} & set(sys.orig_argv) or "kmr.supervisor.supervised" in command
if worker and "spark" not in command:
    sys.meta_path.insert(0, NoPandas)
"""


@pytest.fixture(scope="session", autouse=True)
def _processes_know_what_users_install(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes that tests start find no hypothesis, which kio would import, and workers no pandas.

    They would be a fifth of the start of a broker, and of a worker (pyarrow imports pandas if it can). So do
    the workers of a backfill.
    """
    directory = tmp_path_factory.mktemp("site")
    (directory / "sitecustomize.py").write_text(_WITHOUT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(directory), prepend=os.pathsep)
        yield


class Certificates(NamedTuple):
    """Files in PEM: an authority, what it signed for 127.0.0.1 and localhost, and for a client."""

    authority: Path
    certificate: Path
    key: Path
    client_certificate: Path
    client_key: Path
    stranger_certificate: Path
    """Of a client that another authority signed, for the key `client_key`."""


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Made anew for each run, by the program `openssl`."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("certificates are made by the program openssl, which is not installed")
    directory = tmp_path_factory.mktemp("certificates")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=directory, check=True, capture_output=True)

    def authority(name: str) -> None:
        run(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2"),
            *("-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign"),
        )

    def request(name: str, subject: str) -> None:
        run(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject),
        )

    def sign(name: str, by: str, out: str, extensions: str) -> None:
        (directory / "extensions").write_text(extensions)
        run(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{by}.pem", "-CAkey", f"{by}.key"),
            *("-CAcreateserial", "-days", "2", "-extfile", "extensions", "-out", out),
        )

    authority("authority")
    authority("stranger")
    request("broker", "/CN=broker")
    request("client", "/O=Example, Inc./CN=client")
    sign("broker", "authority", "broker.pem", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    sign("client", "authority", "client.pem", "extendedKeyUsage=clientAuth")
    sign("client", "stranger", "client-by-stranger.pem", "extendedKeyUsage=clientAuth")
    names = ("authority.pem", "broker.pem", "broker.key", "client.pem", "client.key")
    return Certificates(*(directory / each for each in (*names, "client-by-stranger.pem")))


@pytest.fixture(autouse=True)
def _modules_as_before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget what was imported from users' projects: other tests have modules of the same names."""
    before = set(sys.modules)
    yield
    projects = (str(tmp_path_factory.getbasetemp()), f"{ROOT}/deploy/", f"{ROOT}/examples/")
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(projects):
            del sys.modules[name]


@pytest.fixture(scope="session", autouse=True)
def _modules_stay_frozen() -> Iterator[None]:
    """Collections look at no module, also after a simulation, which ends with `gc.unfreeze`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Undo the logging set-up of a command that ran in this process: other tests read the output."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logger.level for name, logger in _loggers()}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, logger in _loggers():
        before = levels.get(name, logging.NOTSET)
        if logger.level != before:  # setting it walks through all loggers
            logger.setLevel(before)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def _loggers() -> list[tuple[str, logging.Logger]]:
    known = list(logging.getLogger().manager.loggerDict.items())
    return [(name, logger) for name, logger in known if isinstance(logger, logging.Logger)]


@pytest.fixture(scope="session")
def clickhouse_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The embedded ClickHouse, in a process of its own: one process can open one data directory."""
    data = tmp_path_factory.mktemp("clickhouse")
    kmr = Path(sys.executable).with_name("kmr")
    with subprocess.Popen(
        [kmr, "clickhouse", "serve", "--data", data, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            ready = re.search(r"answers on (http://[^,]+),", server.stdout.readline())
            assert ready is not None, "the embedded ClickHouse did not start"
            yield ready[1]
        finally:
            server.terminate()
            assert server.wait(60) == 0


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL; one for each process of pytest."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, request: pytest.FixtureRequest) -> str:
    """The URL of a schema of the test's own."""
    schema = f"s{zlib.crc32(request.node.nodeid.encode()):08x}"
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
        connection.execute(f'CREATE SCHEMA "{schema}"')
    return f"{postgres_server.url}?options=-csearch_path%3D{schema}"


@pytest.fixture(scope="session")
def quick_jvms() -> Iterator[None]:
    """Spark's drivers start quickly from now on: in this process, and in those that it starts."""
    pytest.importorskip("pyspark")
    archive = class_archive()
    with pytest.MonkeyPatch.context() as patch:
        share = "" if archive is None else f" -XX:SharedArchiveFile={archive}"
        patch.setenv("SPARK_SUBMIT_OPTS", QUICK_JVM + share)
        yield


@pytest.fixture(scope="session")
def spark(quick_jvms: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One `local[2]` session for all tests of a process."""
    from pyspark import SparkContext

    from kmr.spark.session import open_session

    directory = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SPARK_HOME", raising=False)  # `open_session` makes a lean one
        session = open_session(
            "local[2]",
            settings={
                "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory}",
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": str(directory / "warehouse"),
                "spark.local.dir": str(directory / "local"),
            },
            planning_only=True,
        )
    yield session
    session.stop()
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()  # what Spark's launcher waits for
    gateway.proc.wait(60)
