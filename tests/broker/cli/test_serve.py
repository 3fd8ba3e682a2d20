"""kmr broker serve, as a process."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

SERVE = ["-c", "from kmr.broker.cli import app; app()", "serve"]


async def start(*arguments: str | int | Path) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *SERVE,
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@asynccontextmanager
async def serving(*arguments: str | int | Path) -> AsyncIterator[tuple[Process, str]]:
    """A broker that is ready, and its address; killed at the end if it still runs."""
    process = await start(*arguments)
    try:
        assert process.stdout is not None
        ready = (await process.stdout.readline()).decode()
        assert ready.startswith("listening on "), await process.communicate()
        yield process, ready.split()[2].rstrip(",")
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def member(servers: str) -> AIOKafkaConsumer[bytes, bytes]:
    """A member of a group whose ghost is soon forgotten."""
    return AIOKafkaConsumer(
        "t",
        bootstrap_servers=servers,
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=2_000,
        heartbeat_interval_ms=100,
    )


async def finished(process: Process) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a process that ends without a signal."""
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    async with serving("--data", tmp_path, "--port", 0) as (process, servers):
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            await producer.send_and_wait("t", b"value")
            process.send_signal(number)
            code, out, err = await finished(process)
        assert (code, out) == (0, "")
        assert "Traceback" not in err
        assert (tmp_path / "clean").exists()


async def test_acknowledged_records_survive_a_kill(tmp_path: Path) -> None:
    arguments = ("--data", tmp_path, "--port", 0, "--group-min-session-timeout", "100ms")
    async with serving(*arguments) as (process, servers):
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            for index in range(20):
                await producer.send_and_wait("t", b"%d" % index)
        async with member(servers) as consumer:
            for _ in range(5):
                record = await consumer.getone()
            await consumer.commit({next(iter(consumer.assignment())): record.offset + 1})
            process.kill()
            await process.wait()
    async with serving(*arguments) as (_, servers), member(servers) as consumer:
        values = [(await consumer.getone()).value for _ in range(15)]
    assert values == [b"%d" % index for index in range(5, 20)]


async def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    async with serving("--data", tmp_path / "a", "--port", 0) as (_, servers):
        port = servers.rpartition(":")[2]
        code, out, err = await finished(await start("--data", tmp_path / "b", "--port", port))
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith("kmr broker: ")
        assert port in err


async def test_a_data_directory_that_is_in_use_is_one_line(tmp_path: Path) -> None:
    async with serving("--data", tmp_path, "--port", 0) as (process, _):
        code, out, err = await finished(await start("--data", tmp_path, "--port", 0))
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert f"{tmp_path} is in use" in err
        assert str(process.pid) in err


async def test_a_wrong_setting_is_one_line(tmp_path: Path) -> None:
    code, out, err = await finished(await start("--data", tmp_path, "--partitions", 0))
    assert (code, out) == (2, "")
    assert err == (
        "kmr broker: default_partitions must be a whole number > 0, not '0' (from flag --partitions)\n"
    )


async def test_logs_go_to_stderr_as_json_if_that_is_asked_for(tmp_path: Path) -> None:
    flags = ("--log-format", "json")
    async with serving(*flags, "--data", tmp_path, "--port", 0, "--partitions", 3) as (
        process,
        servers,
    ):
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            assert len(await producer.partitions_for("t")) == 3
        process.terminate()
        _, out, err = await finished(process)
    assert out == ""
    events = [json.loads(line) for line in err.splitlines()]
    assert [(each["event"], each["level"]) for each in events] == [
        ("broker started", "info"),
        ("topic created", "info"),
        ("broker stopping", "info"),
        ("broker stopped", "info"),
    ]
    assert list(events[1])[:4] == ["timestamp", "level", "logger", "event"]
    assert (events[0]["address"], events[1]["topic"]) == (servers, "t")
    assert (events[2]["signal"], events[3]["seconds"] < 25) == ("SIGTERM", True)


async def test_other_machines_cannot_connect_by_accident(tmp_path: Path) -> None:
    """As a process: what it says, and its exit code."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from kmr.broker.cli import app; app()", "serve"),
        *("--data", str(tmp_path), "--port", "0", "--host", "0.0.0.0"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    text = said.decode()
    assert text.startswith("kmr broker: host '0.0.0.0' lets other machines connect")
    for flag in ("--tls-certificate", "--tls-key", "--users", "--tls-client-ca", "--insecure"):
        assert flag in text
    assert text.count("\n") == 1
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240


async def test_a_schema_that_was_registered_is_there_after_a_kill(tmp_path: Path) -> None:
    arguments = ("--data", tmp_path, "--port", 0, "--registry-port", 0)
    body = b'{"schema": "\\"int\\""}'
    for method, found in (("post", 1), ("get", [1])):
        process = await start(*arguments)
        try:
            assert process.stdout is not None
            ready = (await process.stdout.readline()).decode()
            _, said, registry = ready.strip().partition(", schemas on ")
            assert said, ready
            async with aiohttp.request(
                method, f"{registry}/subjects/s/versions", data=body if method == "post" else None
            ) as answer:
                answered = json.loads(await answer.read())
                assert (answered["id"] if method == "post" else answered) == found
        finally:
            process.kill()
            await process.communicate()
