"""Dead letters under kills: `python -m chaos.letters`; `make chaos ARGS=--long` runs it last.

Every record fails and becomes a letter; then the map is mended, and a replay into ClickHouse is killed again
and again; `--resume` goes on each time. Counted is what the table has: each record once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.abc
import clickhouse_connect
from rich.console import Console

from demo.processes import Children
from kmr.broker.client import BatchProducer
from kmr.chaos.services import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

LETTERS: Final = 1_000_000
KILLS: Final = 10
_PARTITIONS: Final = 4
_CHUNK: Final = 10_000
_STRATEGY: Final = """
import os
from kmr import Strategy, map_record
from kmr.sinks import ClickHouseWriter, DeadLetterWriter

@map_record
def number(record):
    if "FIXED" not in os.environ:
        raise ValueError("no service")
    return {"partition": record.partition, "offset": record.offset, "n": int(record.value)}

strategy = Strategy(number, [ClickHouseWriter("replayed")], DeadLetterWriter("dead"))
"""
_TABLE: Final = (
    "CREATE TABLE replayed (partition UInt32, offset UInt64, n Int64) ENGINE = MergeTree ORDER BY n "
    "SETTINGS non_replicated_deduplication_window = 10000"
)


async def replay_under_kills(letters: int, kills: int, say: Callable[[str], None]) -> bool:
    """Make letters, kill their replay so many times; return whether each record is in the table once."""
    directory = Path(tempfile.mkdtemp(prefix="kmr-letters-"))
    try:
        async with Children(directory / "logs") as children:
            ports = free_port(), free_port()
            broker = await children.start(
                "broker",
                *("broker", "serve", "--data", str(directory / "broker"), "--port", str(ports[0])),
                *("--partitions", str(_PARTITIONS)),
            )
            clickhouse = await children.start(
                "clickhouse",
                *("clickhouse", "serve", "--data", str(directory / "ch"), "--port", str(ports[1])),
            )
            await children.wait_for_port(broker, ports[0])
            await children.wait_for_port(clickhouse, ports[1])
            run = _Run(directory, f"127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}", say)
            await run.make_letters(letters)
            for kill in range(1, kills + 1):
                await run.kill_replay(letters * kill // (kills + 1), resume=kill > 1)
            await run.replay(resume=kills > 0)
            return await run.counts() == (letters, letters, letters)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _Run:
    """Commands in a directory that has the strategy."""

    def __init__(self, directory: Path, servers: str, url: str, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._servers = servers
        self._url = url
        self._say = say
        self._environment = {
            **os.environ,
            "KMR_BOOTSTRAP_SERVERS": servers,
            "KMR_CLICKHOUSE_URL": url,
            "KMR_COMMIT_INTERVAL": "0.2",
        }
        (directory / "letters.py").write_text(_STRATEGY)

    async def make_letters(self, count: int) -> None:
        """Produce records, and process them: all of them fail."""
        await self._kmr("broker", "topic", "create", "dead", "--partitions", str(_PARTITIONS))
        await self._kmr("broker", "topic", "create", "in", "--partitions", str(_PARTITIONS))
        async with BatchProducer(self._servers, "in") as producer:
            for first in range(0, count, _CHUNK):
                values = [b"%d" % n for n in range(first, min(count, first + _CHUNK))]
                await producer.send(values, partition=first // _CHUNK % _PARTITIONS)
        await self._query(_TABLE)
        await self._kmr("run", "letters", "--topic", "in", "--group", "g", "--until-caught-up")
        listed = json.loads(await self._kmr("dlq", "list", "dead", "--json"))
        self._say(f"{listed['open']:,} letters")
        self._environment["FIXED"] = "1"

    async def kill_replay(self, rows: int, *, resume: bool) -> None:
        """Replay until the table has so many rows, and kill the replay then."""
        process = await self._open(*self._replay(resume=resume))
        async with process:
            while process.returncode is None:
                if (await self.counts())[0] >= rows:
                    process.kill()
                    break
                await anyio.sleep(0.02)
        how = "killed" if (process.returncode or 0) < 0 else "ended by itself"
        self._say(f"{how} at {(await self.counts())[0]:,} rows")

    async def replay(self, *, resume: bool) -> None:
        """Replay to the end."""
        self._say((await self._kmr(*self._replay(resume=resume))).strip())

    async def counts(self) -> tuple[int, int, int]:
        """Return the rows, the distinct numbers and the distinct places of records in the table."""
        query = "SELECT count(), uniqExact(n), uniqExact(partition, offset) FROM replayed"
        rows, numbers, places = await self._query(query)
        return rows, numbers, places

    def _replay(self, *, resume: bool) -> list[str]:
        return ["dlq", "replay", "dead", "--strategy", "letters", *(["--resume"] if resume else [])]

    async def _query(self, sql: str) -> list[int]:
        def query() -> list[int]:
            with clickhouse_connect.get_client(dsn=self._url) as client:
                rows = client.query(sql).result_rows
                return list(rows[0]) if rows else []

        return await anyio.to_thread.run_sync(query)

    async def _open(self, *arguments: str) -> anyio.abc.Process:
        return await anyio.open_process(
            [str(Path(sys.executable).with_name("kmr")), *arguments],
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    async def _kmr(self, *arguments: str) -> str:
        done = await anyio.run_process(
            [str(Path(sys.executable).with_name("kmr")), *arguments],
            cwd=self._directory,
            env=self._environment,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"kmr {' '.join(arguments)} failed:\n{done.stderr.decode()[-2000:]}")
        return done.stdout.decode()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--letters", type=int, default=LETTERS)
    parser.add_argument("--kills", type=int, default=KILLS)
    options = parser.parse_args()
    is_whole = anyio.run(replay_under_kills, options.letters, options.kills, Console().print)
    sys.exit(0 if is_whole else 1)
