"""Workers as processes: signals, exit codes, and repeated SIGKILL without a lost record."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient

from kmr.broker.client import BatchProducer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import Process

    from kmr.broker import Broker
    from kmr.testing import StartBroker

STRATEGIES = """
import re, sys, threading, time
from kmr import Strategy, map_record
from kmr.types import Reducer
from kmr.sinks import KafkaWriter, StreamWriter

@map_record
def locate(record):
    if record.value == b"poison":
        raise ValueError("poisoned")
    return {"partition": record.partition, "offset": record.offset}

class Hanging(Reducer):
    def add(self, rows): pass
    def reset(self): pass
    async def flush(self):
        import anyio
        print("hanging", flush=True)
        await anyio.sleep_forever()

@map_record
def stuck(record):
    print("hanging", flush=True)
    threading.Event().wait()

@map_record
async def stuck_loop(record):
    print("hanging", flush=True)
    while True:
        time.sleep(0.1)

class PlainHanging(Hanging):
    def flush(self):
        print("hanging", flush=True)
        threading.Event().wait()

class HangingClose(Hanging):
    async def flush(self):
        print("hanging", flush=True)
    async def close(self):
        await Hanging.flush(self)

class Lingering(HangingClose):
    async def close(self):
        threading.Thread(target=threading.Event().wait, name="of the user").start()

@map_record
def slow(record):
    time.sleep(0.002)
    return {"partition": record.partition, "offset": record.offset}

copy = Strategy(locate, [KafkaWriter(topic="out", max_rows=500, max_age=0.05)])
show = Strategy(locate, [StreamWriter(sys.stdout, max_age=0.05)])
slow_show = Strategy(slow, [StreamWriter(sys.stdout, max_age=0.05)])
hang = Strategy(locate, [Hanging(max_rows=1)])
hung_map = Strategy(stuck, [StreamWriter(sys.stdout)])
@map_record
def locked(record):
    print("hanging", flush=True)
    re.match("(a+)+$", "a" * 60 + "b")

hung_lock = Strategy(locked, [StreamWriter(sys.stdout)])
hung_loop = Strategy(stuck_loop, [StreamWriter(sys.stdout)])
hung_flush = Strategy(locate, [PlainHanging(max_rows=1)])
hung_close = Strategy(locate, [HangingClose(max_rows=1)])
lingering = Strategy(locate, [Lingering(max_rows=1)])
"""


WELL_BEFORE_FOR_EVER = 90.0  # seconds; the deadline is 1 s, or 25 s


class Workers:
    """Starts `kmr run` processes on a broker, and kills those that run at the end."""

    def __init__(self, directory: Path, bootstrap_servers: str) -> None:
        self._directory = directory
        self.bootstrap_servers = bootstrap_servers
        (directory / "strategies.py").write_text(STRATEGIES)
        self.started: list[Process] = []

    async def start(self, strategy: str, *flags: str) -> Process:
        process = await anyio.open_process(
            [
                str(Path(sys.executable).with_name("kmr")),
                *("run", f"strategies:{strategy}", "--topic", "in", "--group", "g"),
                *("--bootstrap-servers", self.bootstrap_servers, "--heartbeat-interval", "0.1"),
                *("--commit-interval", "0.1", *flags),
            ],
            cwd=self._directory,
            env={**os.environ, "NO_COLOR": "1"},
            stdin=None,
        )
        self.started.append(process)
        return process


@asynccontextmanager
async def workers_of(directory: Path, broker: Broker) -> AsyncIterator[Workers]:
    workers = Workers(directory, broker.bootstrap_servers)
    try:
        yield workers
    finally:
        for process in workers.started:
            if process.returncode is None:
                process.kill()
            await process.aclose()


async def produce(broker: Broker, *values: bytes) -> None:
    async with BatchProducer(broker.bootstrap_servers, "in") as producer:
        await producer.send(values)


async def read_until(process: Process, marker: bytes) -> None:
    """Read the process's output until the marker was printed."""
    assert process.stdout is not None
    seen = b""
    while marker not in seen:
        seen += await process.stdout.receive()


async def errors_of(process: Process) -> str:
    assert process.stderr is not None
    return b"".join([chunk async for chunk in process.stderr]).decode()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGHUP, 129)])
async def test_a_signal_drains_and_the_exit_code_says_whether_to_start_again(
    broker: Broker, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    async with workers_of(tmp_path, broker) as workers:
        await produce(broker, b"a", b"b")
        process = await workers.start("show")
        await read_until(process, b'"offset":1')
        process.send_signal(number)
        assert await process.wait() == code
        assert "drained and stopped" in await errors_of(process)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_a_drain_does_not_map_what_was_fetched_and_loses_nothing(
    broker: Broker, tmp_path: Path, executor: str
) -> None:
    async with workers_of(tmp_path, broker) as workers:
        await produce(broker, *[b"x"] * 200_000)
        process = await workers.start("slow_show", "--executor", executor)
        assert process.stdout is not None
        printed = await process.stdout.receive()  # the rows of 100,000 records need 200 s
        process.send_signal(signal.SIGTERM)
        with anyio.fail_after(WELL_BEFORE_FOR_EVER):
            printed += b"".join([chunk async for chunk in process.stdout])
            assert await process.wait() == 0
        offsets = [msgspec.json.decode(line)["offset"] for line in printed.splitlines()]
        assert offsets == list(range(len(offsets)))
        assert len(offsets) < 200_000
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        committed = await admin.list_consumer_group_offsets("g")
        await admin.close()
        assert [entry.offset for entry in committed.values()] == [len(offsets)]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_a_second_signal_ends_a_worker_that_cannot_drain(
    broker: Broker, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    async with workers_of(tmp_path, broker) as workers:
        await produce(broker, b"a")
        process = await workers.start("hang")
        await read_until(process, b"hanging")
        process.send_signal(number)
        assert process.stderr is not None
        seen = b""
        while b"second signal" not in seen:  # at first it counts as the same signal
            with anyio.move_on_after(0.2):
                seen += await process.stderr.receive()
                continue
            os.kill(process.pid, number)  # the process object would take its exit code from asyncio
        assert await process.wait() == code


@pytest.mark.slow
async def test_a_drain_beyond_its_deadline_ends_with_three_and_names_the_records(
    broker: Broker, tmp_path: Path
) -> None:
    async with workers_of(tmp_path, broker) as workers:
        await produce(broker, b"a")
        process = await workers.start("hang", "--shutdown-deadline", "1")
        await read_until(process, b"hanging")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 3
        errors = await errors_of(process)
        assert "in-0[0..0]" in errors
        assert "Traceback" not in errors


HANGING = ["hung_flush", "hung_map", "hung_loop", "hung_close", "lingering"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", HANGING)
async def test_whatever_hangs_the_process_ends_with_three_at_its_deadline(
    strategy: str, broker: Broker, tmp_path: Path
) -> None:
    async with workers_of(tmp_path, broker) as workers:
        await produce(broker, b"a")
        process = await workers.start(strategy, "--shutdown-deadline", "1")
        await read_until(process, b"hanging")
        process.send_signal(signal.SIGTERM)
        with anyio.fail_after(WELL_BEFORE_FOR_EVER):
            assert await process.wait() == 3
        errors = await errors_of(process)
        assert "Traceback" not in errors
        if strategy in ("hung_flush", "hung_map", "hung_loop"):
            assert "in-0[0..0] not drained" in errors
        else:
            assert "not drained" not in errors
        if strategy == "lingering":
            assert "of the user" in errors


@pytest.mark.slow
@pytest.mark.parametrize(("deadline", "signals"), [("2", 1), ("600", 2)])
async def test_a_map_that_holds_the_interpreter_lock_does_not_outlive_the_deadline_or_a_second_signal(
    deadline: str, signals: int, broker: Broker, tmp_path: Path
) -> None:
    """No thread of the process runs any more: a process beside it names the map, and C code ends it."""
    async with workers_of(tmp_path, broker) as workers:
        await produce(broker, b"a")
        process = await workers.start("hung_lock", "--shutdown-deadline", deadline)
        await read_until(process, b"hanging")
        await anyio.sleep(0.3)  # the lock is held as soon as the expression is compiled
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            await anyio.sleep(1.0)
        with anyio.fail_after(WELL_BEFORE_FOR_EVER):
            assert await process.wait() == 3
        errors = await errors_of(process)
        assert (
            "a call holds Python's interpreter lock (the last that began: map <Batch in-0[0..0]"
            in errors
        )
        assert "in locked" in errors, "its stack is printed"


@pytest.mark.slow
async def test_a_worker_that_holds_the_interpreter_lock_tells_its_supervisor_where(
    broker: Broker, tmp_path: Path
) -> None:
    async with workers_of(tmp_path, broker) as workers:
        await produce(broker, b"a")
        flags = ("--workers", "2", "--worker-live-timeout", "2", "--shutdown-deadline", "8")
        process = await workers.start("hung_lock", *flags)
        assert process.stdout is not None
        errors = b""

        async def read_errors() -> None:
            nonlocal errors
            assert process.stderr is not None
            async for chunk in process.stderr:
                errors += chunk

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read_errors)
            await read_until(process, b"hanging")  # it is abandoned, and started again
            await read_until(process, b"hanging")
            said = errors.decode()
            assert "not live for" in said
            assert "abandoned by its supervisor (the last that began: map <Batch in-0[0..0]" in said
            assert "in locked" in said, "its stack is printed"
            seen = len(errors)
            process.send_signal(signal.SIGTERM)
            with anyio.fail_after(WELL_BEFORE_FOR_EVER):
                assert await process.wait() == 3
        said = errors[seen:].decode()
        assert "interpreter lock (the last that began: map <Batch in-0[0..0]" in said
        assert "in locked" in said
        assert "did not drain within shutdown_deadline" in said


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["hung_flush", "hung_loop"])
async def test_a_second_signal_ends_the_process_at_once_whatever_hangs(
    strategy: str, broker: Broker, tmp_path: Path
) -> None:
    async with workers_of(tmp_path, broker) as workers:
        await produce(broker, b"a")
        process = await workers.start(strategy)
        await read_until(process, b"hanging")
        with anyio.fail_after(WELL_BEFORE_FOR_EVER):
            while process.returncode is None:  # at first it counts as the same signal
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                with anyio.move_on_after(0.2):
                    await process.wait()
        assert process.returncode == 143
        assert "second signal" in await errors_of(process)


@pytest.mark.slow
async def test_a_failed_record_without_an_error_sink_ends_with_one_and_one_message(
    broker: Broker, tmp_path: Path
) -> None:
    async with workers_of(tmp_path, broker) as workers:
        await produce(broker, b"a", b"poison")
        process = await workers.start("show")
        assert await process.wait() == 1
        errors = await errors_of(process)
        assert "in-0[1..1] in map: ValueError: poisoned" in errors
        assert "Traceback" not in errors


@pytest.mark.slow
async def test_no_broker_is_one_clear_message(broker: Broker, tmp_path: Path) -> None:
    async with workers_of(tmp_path, broker) as workers:
        workers.bootstrap_servers = "127.0.0.1:1"
        process = await workers.start("show", "--broker-timeout", "100ms")
        assert await process.wait() == 1
        errors = await errors_of(process)
        assert "127.0.0.1:1" in errors
        assert "Traceback" not in errors


@pytest.mark.slow
async def test_no_record_is_missing_after_sigkill_again_and_again(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = await start_broker(default_partitions=4, group_min_session_timeout=0.5)
    kills, chunk = 5, 2_000
    delivered: Counter[tuple[int, int]] = Counter()
    produced = 0
    async with (
        workers_of(tmp_path, broker) as workers,
        BatchProducer(broker.bootstrap_servers, "in", linger=0.001) as producer,
    ):
        async with BatchProducer(broker.bootstrap_servers, "out"):
            pass  # creates the topic
        out = AIOKafkaConsumer(
            "out", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        )
        await out.start()

        async def read(until: int) -> None:
            with anyio.fail_after(180):
                await read_on(until)

        async def read_on(until: int) -> None:
            while len(delivered) < until:
                for records in (await out.getmany(timeout_ms=1_000)).values():
                    for record in records:
                        row = msgspec.json.decode(record.value)
                        delivered[row["partition"], row["offset"]] += 1

        for _ in range(kills):
            process = await workers.start("copy", "--session-timeout", "1")
            for _ in range(10):
                await producer.send([b"x"] * chunk)
            await producer.flush()
            produced += 10 * chunk
            await read(len(delivered) + chunk)
            process.kill()
            await process.wait()
        process = await workers.start("copy", "--session-timeout", "1")
        await read(produced)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        await out.stop()
    assert len(delivered) == produced, "missing"
    doubled = sum(delivered.values()) - produced
    assert doubled <= kills * 10 * chunk, f"{doubled} doubled: more than was in flight at the kills"
