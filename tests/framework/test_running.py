"""`kmr.run`: a worker from a script or a notebook."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

import kmr
from kmr.errors import RecordFailed, SettingsError, StrategyError
from kmr.testing import Journal, MemoryWriter

if TYPE_CHECKING:
    from pathlib import Path

    from kmr import Record
    from kmr.broker import Broker
    from tests.framework.conftest import Produce


def even(record: Record) -> dict[str, int] | None:
    number = int(record.value or b"")
    return {"n": number} if number % 2 == 0 else None


async def test_a_plain_function_runs_under_a_running_event_loop_and_the_counts_come_back(
    broker: Broker, produce: Produce
) -> None:
    await produce("numbers", [b"1", b"2", b"three", b"4", b"6"])
    written, failed = Journal(), Journal()
    strategy = kmr.Strategy(map=even, reduce=MemoryWriter(written), reduce_err=MemoryWriter(failed))

    def call() -> Any:
        # In a thread, because the broker is on the test's event loop. It has a loop of its own.
        return kmr.run(
            strategy,
            topics=["numbers"],
            group="try",
            bootstrap_servers=broker.bootstrap_servers,
            until_caught_up=True,
        )

    with capture_logs() as logs:
        done = await _in_thread_with_loop(call)
    assert (done.read, done.written, done.filtered, done.failed) == (5, 3, 1, 1)
    assert (logs[-1]["event"], logs[-1]["log_level"]) == (str(done), "warning")
    assert "invalid literal for int()" in logs[-1]["latest_reason"]
    assert str(done) == "records: 5 read, 1 filtered, 1 failed; rows: 3 written"
    assert [row["n"] for row in written.rows()] == [2, 4, 6]


def halves(record: Record) -> list[dict[str, object]]:
    number = int(record.value or b"")
    return [{"n": number, "half": number / 2 if number % 2 == 0 else "odd"}] * 2


async def test_rows_that_fit_no_column_are_counted_as_not_written(
    broker: Broker, produce: Produce
) -> None:
    for number in (b"2", b"4", b"1", b"6"):  # a batch for each, so that types meet in the flush
        await produce("numbers", [number])
    written, failed = Journal(), Journal()
    strategy = kmr.Strategy(
        map=halves, reduce=MemoryWriter(written), reduce_err=MemoryWriter(failed)
    )
    done = await _in_thread_with_loop(
        lambda: kmr.run(
            strategy,
            topics=["numbers"],
            group="try",
            bootstrap_servers=broker.bootstrap_servers,
            until_caught_up=True,
        )
    )
    assert (done.written, done.failed) == (len(written.rows()), len(failed.rows())) == (6, 1)


async def _in_thread_with_loop(call: Any) -> Any:
    async def inside() -> Any:
        return call()

    return await asyncio.to_thread(asyncio.run, inside())


async def test_the_error_that_ends_the_worker_is_raised(broker: Broker, produce: Produce) -> None:
    await produce("numbers", [b"two"])
    strategy = kmr.Strategy(map=even, reduce=MemoryWriter(Journal()))
    with pytest.raises(RecordFailed, match="invalid literal for int"):
        await _in_thread_with_loop(
            lambda: kmr.run(
                strategy,
                topics="numbers",
                group="try",
                bootstrap_servers=broker.bootstrap_servers,
            )
        )


def test_wrong_settings_are_named_before_anything_runs() -> None:
    strategy = kmr.Strategy(map=even, reduce=MemoryWriter(Journal()))
    with pytest.raises(SettingsError, match="did you mean until_caught_up"):
        kmr.run(strategy, topics=["a"], group="g", until_cought_up=True)
    with pytest.raises(SettingsError, match="group is not set"):
        kmr.run(strategy, topics=["a"])
    with pytest.raises(SettingsError, match="one worker, not 2"):
        kmr.run(strategy, topics=["a"], group="g", workers=2)
    wrong: Any = "hits:strategy"
    with pytest.raises(StrategyError, match="strategy must be a Strategy, not 'hits:strategy'"):
        kmr.run(wrong, topics=["a"], group="g")
    for arguments, message in (
        ({"last": "10"}, "last must be int or None, not '10'"),
        ({"last": 0}, "last must be at least 1, not 0"),
        ({"value": kmr.Text}, r"value= is the class Text, .* pass Text\(...\)"),
    ):
        given: Any = arguments
        with pytest.raises(StrategyError, match=message):
            kmr.read("a", **given)


SCRIPT = """
import signal
import sys
import threading
import kmr
from kmr.sinks import StreamWriter

done = kmr.run(
    kmr.Strategy(map=lambda record: {"value": record.value.decode()}, reduce=StreamWriter("stdout")),
    topics=["t"], group="g", bootstrap_servers=sys.argv[1],
)
print("written", done.written)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print([thread.name for thread in threading.enumerate() if not thread.daemon])
print("process end" in [thread.name for thread in threading.enumerate()])
"""


async def test_an_interrupted_script_drains_gets_the_counts_and_goes_on(
    broker: Broker, produce: Produce, tmp_path: Path
) -> None:
    await produce("t", [b"a"])
    (tmp_path / "script.py").write_text(SCRIPT)
    code, lines = await asyncio.to_thread(_interrupt_after_a_line, tmp_path, broker)
    assert lines[1:] == ["written 1\n", "True\n", "['MainThread']\n", "False\n"]
    assert code == 0


def _interrupt_after_a_line(folder: Path, broker: Broker) -> tuple[int, list[str]]:
    with subprocess.Popen(
        [sys.executable, "-u", "script.py", broker.bootstrap_servers],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        process.send_signal(signal.SIGINT)
        lines += process.stdout
    return process.returncode, lines
