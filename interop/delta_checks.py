"""What `python -m interop.delta` checks, in the environment with Delta's PySpark."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import pyarrow as pa
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from rich.console import Console

from demo.processes import Children, give_up_after
from interop.checks import CheckFailed, Checks
from interop.delta_strategy import DEATH, JARS, PATH, settings_of
from kmr.broker.client import BatchProducer
from kmr.chaos.services import free_port
from kmr.errors import StrategyError
from kmr.reducers.reducer import Context, Retry
from kmr.sinks.spark.writer import SparkWriter
from kmr.spark.session import open_session
from tests.framework.flushes import outcome_now
from tests.framework.sinks.histories import History, rows_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pyspark.sql import SparkSession

    from demo.processes import Child
    from kmr.record import Rows

__all__ = ["PARTS", "main"]

PARTS: Final = ("appends", "tables", "histories", "columns", "conflicts", "spark", "worker")

_SCHEMA: Final = rows_of([], 0).table.schema
_ID: Final[pa.Field[Any]] = pa.field("id", pa.int64(), nullable=False)
_NAME: Final[pa.Field[Any]] = pa.field("name", pa.string(), nullable=False)
_NARROW: Final = pa.schema([_ID, _NAME])
_DEATHS: Final = ("2 after", "1 before", "2 after", "")
_WAIT: Final = 900.0  # seconds, on a machine that has much else to do
_CUT: Final = 7  # records of a range


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, print; return 0 if every check passed."""
    parser = argparse.ArgumentParser(prog="python -m interop.delta_checks", description=__doc__)
    parser.add_argument("--jars", required=True)
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--output", required=True)
    options = parser.parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False, width=180)
    return anyio.run(_run, options, console)


async def _run(options: argparse.Namespace, console: Console) -> int:
    directory, checks = Path(tempfile.mkdtemp(prefix="kmr-delta-")), Checks(console)
    spark = open_session(
        "local[2]",
        settings=settings_of(options.jars)
        | {"spark.sql.warehouse.dir": str(directory / "warehouse")},
    )
    try:
        async with Children(Path(options.output)) as children:
            delta = DeltaChecks(spark, directory, options.jars, options.seed, children)
            await delta.run(checks, options.only or PARTS)
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)
    console.print(checks.table(f"changes into Delta, seed {options.seed}"))
    return 0 if checks.passed else 1


class DeltaChecks:
    """Checks against one session with Delta, and against processes that have their own."""

    def __init__(
        self, spark: SparkSession, directory: Path, jars: str, seed: int, children: Children
    ) -> None:
        self._spark = spark
        self._directory = directory
        self._jars = jars
        self._seed = seed
        self._children = children

    async def run(self, checks: Checks, parts: Sequence[str]) -> None:
        """Run parts of `PARTS`."""
        known: dict[str, list[tuple[str, Callable[[], Awaitable[str]]]]] = {
            "appends": [("rows that are appended twice", self._appends)],
            "tables": [("tables that are missing, made, or of another format", self._tables)],
            "histories": [
                (
                    "histories through replays and late writes: 1 partition",
                    lambda: self._history(1),
                ),
                (
                    "histories through replays and late writes: 3 partitions",
                    lambda: self._history(3),
                ),
            ],
            "columns": [("new columns, and columns that cannot be null", self._added_columns)],
            "conflicts": [("two writers at once", self._conflicts)],
            "spark": [("drivers killed around a MERGE", lambda: self._killed("spark", 3))],
            "worker": [("workers killed around a MERGE", lambda: self._killed("worker", 1))],
        }
        for part in parts:
            for name, action in known[part]:
                await checks.run("Delta", name, action)

    async def _appends(self) -> str:
        path = str(self._directory / "appended")
        rows = rows_of(_puts([(1, "a"), (2, "b"), (1, "c")]), 0)
        rows = type(rows)(rows.table.select(["id", "name"]), rows.ranges, rows.offsets)
        for _ in range(2):
            writer = SparkWriter(path=path, format="delta")
            await writer.open(Context("g", "reduce-1"))
            _flush(writer, rows)
        found = sorted(tuple(row) for row in self._spark.read.format("delta").load(path).collect())
        if found != [(1, "a"), (1, "c"), (2, "b")]:
            raise CheckFailed(f"the table has {found}")
        return "each row once"

    async def _tables(self) -> str:
        self._spark.sql("CREATE TABLE plain (id BIGINT, name STRING) USING parquet")
        for options, expected in (
            ({"table": "missing"}, "Spark has no table missing"),
            ({"table": "plain"}, "table plain is of parquet; changes=True needs a table"),
        ):
            try:
                await self._open(**options)
            except StrategyError as error:
                if not str(error).startswith((expected, f"SparkWriter: {expected}")):
                    raise CheckFailed(f"{options} is refused with: {error}") from error
            else:
                raise CheckFailed(f"{options} is not refused")
        writer = SparkWriter(table="made", changes=True, key=["id"], create=_SCHEMA)
        found = await writer.examine(Context("g", "reduce-1"))
        if "will be created: CREATE TABLE" not in found[0].text:
            raise CheckFailed(f"kmr doctor says {found[0].text}")
        await self._open(table="made", create=_SCHEMA)
        columns = self._spark.table("made").dtypes
        if columns != [("id", "bigint"), ("name", "string"), ("note", "string")]:
            raise CheckFailed(f"the table that was made has the columns {columns}")
        return "missing and Parquet: refused; create: id, name, note"

    async def _history(self, partitions: int) -> str:
        """Each range is repeated by a new writer at times, and at times the one before comes late."""
        chance = random.Random(self._seed)  # noqa: S311  no secrets
        history = History.random(chance, 60, partitions, truncates=0.02)
        path = str(self._directory / f"history-{partitions}")
        writer = await self._open(path=path, format="delta", schema=_SCHEMA)
        written = repeated = late = 0
        for partition, topic in enumerate(history.topic):
            before: Rows | None = None
            for at in range(0, len(topic), _CUT):
                begin = max(0, at - chance.choice((0, 0, 3)))
                rows = rows_of(topic[begin : at + _CUT], begin, partition)
                _flush(writer, rows)
                written += 1
                if chance.random() < 0.3:
                    writer = await self._open(path=path, format="delta")
                    _flush(writer, rows)
                    repeated += 1
                if before is not None and chance.random() < 0.3:
                    _flush(writer, before)
                    late += 1
                before = rows
        self._compare(path, history)
        counted = f"{written} ranges, {repeated} repeated, {late} late"
        return f"{counted}; {len(history.table)} rows as in the source"

    async def _added_columns(self) -> str:
        writer = await self._open(table="narrow", create=_NARROW)
        noted = _with_note(rows_of(_puts([(1, "a"), (2, "b")]), 0))
        try:
            _flush(writer, noted)
        except StrategyError as error:
            if "has no column note" not in str(error):
                raise CheckFailed(f"a new column is refused with: {error}") from error
        else:
            raise CheckFailed("a column that the table lacks is not refused")
        self._spark.sql("ALTER TABLE narrow ADD COLUMN (note STRING, tier STRING)")
        _flush(writer, noted)
        self._spark.sql("UPDATE narrow SET tier = 'gold'")
        null = rows_of(_puts([(1, "aa"), (3, "c")]), 2)
        nameless = pa.array(["aa", None], pa.string())
        table = null.table.set_column(null.table.column_names.index("name"), "name", nameless)
        refused = _flush(writer, type(null)(table, null.ranges, null.offsets))
        rows = sorted(tuple(row) for row in self._spark.table("narrow").collect())
        if rows != [(1, "aa", None, "gold"), (2, "b", "x", "gold")] or refused != 1:
            raise CheckFailed(f"the table has {rows}, and {refused} rows were refused")
        return "refused by name, then written after ALTER TABLE; another writer's column is kept"

    async def _conflicts(self) -> str:
        """Both write each of 4 ranges of a partition of their own at the same time."""
        path = str(self._directory / "conflicts")
        history = History(2)
        for number in range(32):
            history.apply(("put", number % 12, f"name {number}"))
        writers = [
            await self._open(path=path, format="delta", schema=_SCHEMA) for _ in history.topic
        ]
        retries = [0, 0]
        failures: list[BaseException] = []

        def write(partition: int) -> None:
            topic = history.topic[partition]
            size = max(1, len(topic) // 4)
            try:
                for at in range(0, len(topic), size):
                    rows = rows_of(topic[at : at + size], at, partition)
                    retries[partition] += _flush_until_done(writers[partition], rows)
            except BaseException as error:  # noqa: BLE001  it is raised below
                failures.append(error)

        threads = [threading.Thread(target=write, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await anyio.to_thread.run_sync(thread.join)
        if failures:
            raise failures[0]
        self._compare(path, history)
        return f"{sum(retries)} writes were tried again; every row is there"

    async def _killed(self, engine: str, partitions: int) -> str:
        """Start, let it be killed around a MERGE, start again; the last start reads to the end."""
        chance = random.Random(self._seed)  # noqa: S311  no secrets
        history = History.random(chance, 240, partitions, truncates=0.02)
        path = str(self._directory / f"killed-{engine}")
        servers = await self._broker(engine, history)
        for number, death in enumerate(_DEATHS):
            child = await self._start(f"{engine}-{number}", engine, servers, path, death)
            if death:
                with give_up_after(_WAIT, f"{child.name} is not killed: {child.tail()}"):
                    await child.wait()
                if await child.stop() != -signal.SIGKILL:
                    raise CheckFailed(f"{child.name} ended by itself:\n{child.tail()}")
            elif engine == "spark":
                with give_up_after(_WAIT, f"{child.name} does not end"):
                    await child.wait()
                child.check()
            else:
                await self._until_equal(child, path, history)
                await child.stop()
        self._compare(path, history)
        records = sum(map(len, history.topic))
        return f"{records} records, {len(_DEATHS) - 1} kills; {len(history.table)} rows as in the source"

    async def _until_equal(self, child: Child, path: str, history: History) -> None:
        with give_up_after(_WAIT, f"{child.name} does not write all"):
            while self._rows(path) != history.table:
                child.check()
                await anyio.sleep(1.0)

    async def _broker(self, topic: str, history: History) -> str:
        port = free_port()
        broker = await self._children.spawn(
            f"broker-{topic}",
            _kmr("broker", "serve", "--data", str(self._directory / topic), "--port", str(port)),
        )
        await self._children.wait_for_port(broker, port)
        servers = f"127.0.0.1:{port}"
        admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(topic, history.partitions, 1)])
        finally:
            await admin.close()
        async with BatchProducer(servers, topic) as producer:
            for partition, values in enumerate(history.topic):
                await producer.send(values, partition=partition)
        return servers

    async def _start(self, name: str, engine: str, servers: str, path: str, death: str) -> Child:
        command = _kmr("run", "interop.delta_strategy:strategy", "--topic", engine)
        command += ["--group", "g", "--bootstrap-servers", servers]
        if engine == "spark":
            checkpoint = str(self._directory / "checkpoint")
            command += ["--engine", "spark", "--master", "local[2]", "--checkpoint", checkpoint]
            command += ["--trigger", "available-now", "--max-offsets-per-trigger", "90"]
            for key, value in settings_of(self._jars).items():
                command += ["--spark-conf", f"{key}={value}"]
        environment = {PATH: path, JARS: self._jars, DEATH: death}
        return await self._children.spawn(name, command, environment=environment)

    async def _open(self, **options: Any) -> SparkWriter:
        writer = SparkWriter(changes=True, key=["id"], **options)
        await writer.open(Context("g", "reduce-1"))
        return writer

    def _rows(self, path: str) -> dict[int, str]:
        if not (Path(path) / "_delta_log").exists():
            return {}
        rows = self._spark.read.format("delta").load(path).select("id", "name").collect()
        found = [tuple(row) for row in rows]
        if len(found) != len(dict(found)):
            raise CheckFailed(f"a key is there twice: {sorted(found)}")
        return dict(found)

    def _compare(self, path: str, history: History) -> None:
        found = self._rows(path)
        if found != history.table:
            raise CheckFailed(f"the table has {found}\nthe source has {history.table}")


def _kmr(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kmr", *arguments]


def _puts(rows: Sequence[tuple[int, str]]) -> list[bytes | None]:
    return History.of([("put", key, name) for key, name in rows], 1).topic[0]


def _with_note(rows: Rows) -> Rows:
    at = rows.table.column_names.index("note")
    note = pa.array(["x"] * len(rows), pa.string())
    return type(rows)(rows.table.set_column(at, "note", note), rows.ranges, rows.offsets)


def _flush(writer: SparkWriter, rows: Rows) -> int:
    """Flush rows; return how many were refused."""
    writer.reset()
    if not len(rows):
        return 0
    writer.add(rows)
    result = outcome_now(writer)
    if isinstance(result, Retry):
        raise result
    return sum(len(refused.rows) for refused in result.refusals)


def _flush_until_done(writer: SparkWriter, rows: Rows) -> int:
    for attempt in range(100):
        try:
            _flush(writer, rows)
        except Retry:
            continue
        return attempt
    raise CheckFailed("a write was tried 100 times")


if __name__ == "__main__":
    sys.exit(main())
