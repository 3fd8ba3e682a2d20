"""The demo as a person runs it, in a folder of its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from demo.flights import carrier_names, load_flights, messages

if TYPE_CHECKING:
    from anyio.abc import Process

ROOT = Path(__file__).parents[2]


async def start_demo(directory: Path) -> Process:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    command = [sys.executable, "-m", "demo"]
    return await anyio.open_process(command, cwd=directory, env=environment, stdin=None)


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


def test_the_data_are_all_flights_with_their_carriers() -> None:
    flights = load_flights()
    assert flights.num_rows == 336_776
    assert set(flights.column("carrier").to_pylist()) <= set(carrier_names())
    keys, values = next(messages(flights, 2))
    assert keys == [b"UA", b"UA"]
    assert values[0].startswith(b'{"year":2013,"month":1,"day":1,')


@pytest.mark.slow
async def test_the_demo_finds_nothing_missing_and_nothing_doubled(tmp_path: Path) -> None:
    process = await start_demo(tmp_path)
    with anyio.fail_after(180):
        assert process.stdout is not None
        output = b"".join([chunk async for chunk in process.stdout]).decode()
        code = await process.wait()
    await process.aclose()
    assert code == 0, output
    assert "336,776 messages: 0 missing, 0 doubled" in output
    assert "JetBlue Airways" in output
    assert processes_below(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_demo_leaves_no_process_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = await start_demo(tmp_path)
    with anyio.fail_after(120):
        assert process.stdout is not None
        output = b""
        while b"producing begins" not in output:
            output += await process.stdout.receive()
        assert len(processes_below(tmp_path)) == 5, "the demo, a broker, ClickHouse and two workers"
        process.send_signal(number)
        assert await process.wait() == 128 + number
    await process.aclose()
    assert processes_below(tmp_path) == []


@pytest.mark.slow
async def test_a_second_demo_in_the_same_folder_says_so_and_touches_nothing(tmp_path: Path) -> None:
    first = await start_demo(tmp_path)
    with anyio.fail_after(120):
        assert first.stdout is not None
        output = b""
        while b"broker on" not in output:
            output += await first.stdout.receive()
        second = await start_demo(tmp_path)
        assert second.stderr is not None
        complaint = b"".join([chunk async for chunk in second.stderr]).decode()
        assert await second.wait() == 1
        await second.aclose()
        assert "another demo is running" in complaint
        first.send_signal(signal.SIGTERM)
        await first.wait()
    await first.aclose()
