"""The framework as a user runs it, by its commands: workers and Spark, health, offsets, `kmr check`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import anyio
import clickhouse_connect
import msgspec

from demo.processes import give_up_after
from demo.services import create_tables
from interop.checks import CheckFailed
from kmr.broker.client import BatchProducer
from kmr.chaos.services import free_port

if TYPE_CHECKING:
    from demo.processes import Child, Children
    from interop.checks import Checks
    from kmr.broker.client import Compression

__all__ = ["Pipeline"]

TOPIC: Final = "interop"
PARTITIONS: Final = 6
TABLE: Final = "kmr_consumer_ingest"
STRATEGY: Final = "demo.pipeline:ingest"

_CODECS: Final[tuple[Compression, ...]] = ("none", "gzip", "snappy", "lz4", "zstd")
_RECORDS: Final = 40_000  # with each codec
_CHUNK: Final = 2_000
_VALUE: Final = b"." * 100
_GROUP: Final = "interop"
_WAIT: Final = 120.0  # seconds, on a machine that has much else to do
_POLL: Final = 0.2
_COMMAND_TIMEOUT: Final = 60.0
_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # it lives for seconds


class Pipeline:
    """One topic, two workers, then Spark; the checks build upon each other.

    Args:
        directory: takes ClickHouse's data and what Spark needs.
    """

    def __init__(self, bootstrap_servers: str, directory: Path, children: Children) -> None:
        self._servers = bootstrap_servers
        self._directory = directory
        self._children = children
        self._clickhouse = f"http://127.0.0.1:{free_port()}"
        self._workers: dict[str, Child] = {}  # by the URL that each serves
        self._sent = 0

    async def check(self, checks: Checks, subject: str) -> None:
        """All checks, in order."""
        await self._start_clickhouse()
        for name, action in (
            ("kmr broker topic: create and describe", self._topic),
            ("groups of a cluster that has had none yet", self._new),
            ("two workers, five codecs, exactly once", self._deliver),
            ("/live, /ready, /metrics", self._health),
            ("kmr top --once", self._top),
            ("kmr offsets show, kmr broker group", self._offsets),
            ("a worker leaves, another joins, records flow", self._come_and_go),
            ("workers drain and end with exit code 0", self._stop),
            ("kmr check: none missing, none doubled", self._count),
            ("kmr offsets reset", self._reset),
            ("the Spark engine, exactly once", self._spark),
        ):
            await checks.run(subject, name, action)

    async def _start_clickhouse(self) -> None:
        port = self._clickhouse.rpartition(":")[2]
        data = str(self._directory / "clickhouse")
        clickhouse = await self._children.start(
            "clickhouse", "clickhouse", "serve", "--data", data, "--port", port
        )
        await self._children.wait_for_port(clickhouse, int(port))
        for database in ("default", "spark"):
            await anyio.to_thread.run_sync(create_tables, self._clickhouse, database)

    async def _topic(self) -> str:
        setting = "retention.ms=3600000"
        create = ("broker", "topic", "create", TOPIC, "--partitions", str(PARTITIONS))
        await self._kmr(*create, "--config", setting)
        shown = await self._kmr("broker", "topic", "describe", TOPIC)
        if f"{TOPIC}: {PARTITIONS} partitions" not in shown or setting not in shown:
            raise CheckFailed(f"kmr broker topic describe shows\n{shown}")
        return f"{PARTITIONS} partitions, {setting}"

    async def _new(self) -> str:
        """The first question makes Apache Kafka create its topic of offsets, which takes a while."""
        missing = await self._kmr("broker", "group", "describe", "nobody", code=1)
        if "does not exist" not in missing:
            raise CheckFailed(f"kmr broker group describe says\n{missing}")
        shown = await self._kmr("offsets", "show", "--group", "nobody", "--topic", TOPIC)
        if "no committed offsets" not in shown:
            raise CheckFailed(f"kmr offsets show says\n{shown}")
        return "an unknown group does not exist"

    async def _deliver(self) -> str:
        for name in ("worker-1", "worker-2"):
            await self._start_worker(name)
        began = anyio.current_time()
        for codec in _CODECS:
            await self._produce(_RECORDS, codec)
        await self._until_delivered()
        rate = self._sent / (anyio.current_time() - began)
        return f"{self._sent:,} records produced and delivered, {rate:,.0f} a second"

    async def _health(self) -> str:
        async with aiohttp.ClientSession() as session:
            for url in self._workers:
                for path in ("/live", "/ready", "/metrics"):
                    async with session.get(url + path) as response:
                        text = await response.text()
                    if response.status != 200:
                        raise CheckFailed(f"{path} answers {response.status}: {text}")
            if "kmr_consumer_lag_records" not in text:
                raise CheckFailed(f"/metrics has no kmr_consumer_lag_records:\n{text}")
        return f"200 from {len(self._workers)} workers"

    async def _top(self) -> str:
        shown = await self._kmr("top", "--once", "--url", next(iter(self._workers)))
        if TOPIC not in shown:
            raise CheckFailed(f"kmr top does not show the topic:\n{shown}")
        return "shows the topic's partitions"

    async def _offsets(self) -> str:
        """All is committed, by two members; both commands agree."""
        with give_up_after(_WAIT, "not everything is committed"):
            while (found := await self._group())["lag"]:  # noqa: ASYNC110  there is no event to wait for
                await anyio.sleep(_POLL)
        if found["state"] != "Stable" or found["members"] != len(self._workers):
            raise CheckFailed(f"the group is {found}, with {len(self._workers)} workers")
        described = await self._kmr("broker", "group", "describe", _GROUP)
        if TOPIC not in described:
            raise CheckFailed(f"kmr broker group describe shows\n{described}")
        return f"committed {found['committed']:,} of {found['end']:,} offsets, 2 members"

    async def _come_and_go(self) -> str:
        url, worker = next(iter(self._workers.items()))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._produce, _RECORDS, "zstd")
            await self._end(url, worker)
            await self._start_worker("worker-3")
        await self._until_delivered()
        return f"{self._sent:,} records delivered"

    async def _stop(self) -> str:
        for url, worker in list(self._workers.items()):
            await self._end(url, worker)
        lag = (await self._group())["lag"]
        if lag:
            raise CheckFailed(f"{lag:,} records are not committed after a clean end")
        return "nothing is left to commit"

    async def _count(self) -> str:
        await self._kmr("check", "--table", TABLE, "--expected", str(self._sent))
        return f"{self._sent:,} rows, each record once"

    async def _reset(self) -> str:
        """Refused while there are members; otherwise it is done, and a dry run changes nothing."""
        end = (await self._group())["end"]
        earliest = ("offsets", "reset", "--group", _GROUP, "--to-earliest")
        await self._kmr(*earliest, "--dry-run")
        if (found := await self._group())["committed"] != end:
            raise CheckFailed(f"a dry run has changed the offsets: {found}")
        await self._start_worker("worker-4")
        refused = await self._kmr(*earliest, code=1)
        for url, worker in list(self._workers.items()):
            await self._end(url, worker)
        await self._kmr(*earliest)
        if (found := await self._group())["committed"] != 0:
            raise CheckFailed(f"not reset: {found}")
        await self._kmr("offsets", "reset", "--group", _GROUP, "--to-latest")
        if (found := await self._group())["committed"] != end:
            raise CheckFailed(f"not reset: {found}")
        return f"done; with members refused: {refused.splitlines()[-1]}"

    async def _spark(self) -> str:
        began = anyio.current_time()
        directory = self._directory / "spark"
        engine = await self._children.start(
            "spark",
            *("run", STRATEGY, "--engine", "spark", "--master", "local[2]"),
            *("--checkpoint", str(directory / "checkpoint"), "--trigger", "available-now"),
            *("--topic", TOPIC, "--group", "interop-spark", "--bootstrap-servers", self._servers),
            *("--spark-conf", f"spark.local.dir={directory / 'local'}"),
            *("--spark-conf", f"spark.driver.extraJavaOptions={_JVM}"),
            KMR_CLICKHOUSE_URL=f"{self._clickhouse}/spark",
        )
        with give_up_after(2 * _WAIT, "the Spark engine has not ended"):
            await engine.wait()
        engine.check()
        await self._kmr("check", "--table", f"spark.{TABLE}", "--expected", str(self._sent))
        seconds = anyio.current_time() - began
        return f"{self._sent:,} rows, each record once, {seconds:.0f} s with its start"

    async def _start_worker(self, name: str) -> None:
        """Start a worker, and wait until it is a member that is ready."""
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        worker = await self._children.start(
            name,
            *("run", STRATEGY, "--topic", TOPIC, "--group", _GROUP, "--client-id", name),
            *("--bootstrap-servers", self._servers, "--http-port", str(port)),
            KMR_CLICKHOUSE_URL=self._clickhouse,
        )
        self._workers[url] = worker
        with give_up_after(_WAIT, f"{name} is not ready"):
            async with aiohttp.ClientSession() as session:
                while not await _ready(session, url):
                    self._children.check()
                    await anyio.sleep(_POLL)

    async def _end(self, url: str, worker: Child) -> None:
        del self._workers[url]
        code = await worker.stop()
        if code:
            raise CheckFailed(f"{worker.name} ended with exit code {code}:\n{worker.tail()}")

    async def _produce(self, records: int, codec: Compression) -> None:
        chunk = [_VALUE] * _CHUNK
        async with BatchProducer(self._servers, TOPIC, compression=codec) as producer:
            for start in range(0, records, _CHUNK):
                await producer.send(chunk, partition=start // _CHUNK % PARTITIONS)
        self._sent += records

    async def _until_delivered(self) -> None:
        client = await clickhouse_connect.get_async_client(dsn=self._clickhouse)
        try:
            with give_up_after(_WAIT, f"not all of {self._sent:,} records are delivered"):
                delivered = 0
                while delivered < self._sent:
                    await anyio.sleep(_POLL)
                    self._children.check()
                    result = await client.query(f"SELECT count() FROM {TABLE}")  # noqa: S608
                    delivered = int(result.result_rows[0][0])
        finally:
            with anyio.CancelScope(shield=True):
                await client.close()

    async def _group(self) -> dict[str, Any]:
        """What `kmr offsets show` says, summed up over the partitions."""
        text = await self._kmr("offsets", "show", "--group", _GROUP, "--topic", TOPIC, "--json")
        shown = msgspec.json.decode(text)
        partitions = shown["partitions"]
        sums = {
            key: sum(each[key] or 0 for each in partitions) for key in ("committed", "end", "lag")
        }
        members = {each["member"] for each in partitions if each["member"]}
        return sums | {"state": shown["state"], "members": len(members)}

    async def _kmr(self, *arguments: str, code: int = 0) -> str:
        """Run a command to its end, which must be `code`; returns what it printed."""
        kmr = str(Path(sys.executable).with_name("kmr"))
        environment = os.environ | {
            "KMR_BOOTSTRAP_SERVERS": self._servers,
            "KMR_CLICKHOUSE_URL": self._clickhouse,
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        with give_up_after(_COMMAND_TIMEOUT, f"kmr {' '.join(arguments)} does not end"):
            done = await anyio.run_process(
                [kmr, *arguments], stderr=subprocess.STDOUT, env=environment, check=False
            )
        printed = done.stdout.decode(errors="replace")
        if done.returncode != code:
            raise CheckFailed(
                f"kmr {' '.join(arguments)} ended with exit code {done.returncode}, not {code}:\n{printed}"
            )
        return printed


async def _ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/ready") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False
