"""Where user code runs."""

from __future__ import annotations

import importlib
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from kmr.errors import StrategyError
from kmr.mapping.executor import Executor
from kmr.mapping.functions import map_batch, map_record, spec_of
from kmr.mapping.stop import Stop
from kmr.observe.logs import setup_logs
from kmr.settings import LogSettings
from kmr.strategy import Strategy
from kmr.testing import Journal, MemoryWriter, batch_of

if TYPE_CHECKING:
    from pathlib import Path

    from kmr.record import Record
    from kmr.settings import ExecutorKind


MODULE = """
import os, threading
from kmr import map_record

@map_record
def whereabouts(record):
    if record.value == b"poison":
        raise ValueError("poisoned")
    return {"process": os.getpid(), "thread": threading.get_ident()}
"""


@map_record
async def whereabouts_async(record: Record) -> dict[str, int]:
    await anyio.lowlevel.checkpoint()
    return {"process": os.getpid(), "thread": threading.get_ident()}


BATCH = batch_of("t", 0, 5, [b"a", b"poison", b"c"])


def of_a_user(name: str, source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function of a module that other processes can import."""
    (folder / f"{name}_of_a_user.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    return getattr(importlib.import_module(f"{name}_of_a_user"), name)


@pytest.mark.parametrize(
    ("kind", "same_process", "same_thread"),
    [("inline", True, True), ("thread", True, False), ("process", False, False)],
)
async def test_a_plain_map_runs_where_it_is_told(
    kind: ExecutorKind,
    same_process: bool,
    same_thread: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whereabouts = of_a_user("whereabouts", MODULE, tmp_path, monkeypatch)
    mapped = await Executor(kind, 1).map(whereabouts, spec_of(whereabouts), BATCH)
    assert mapped.table is not None
    [process] = set(mapped.table.column("process").to_pylist())
    [thread] = set(mapped.table.column("thread").to_pylist())
    assert (process == os.getpid()) is same_process
    if same_process:
        assert (thread == threading.get_ident()) is same_thread
    assert mapped.offsets.tolist() == [5, 7]
    assert [(f.offset, f.reason) for f in mapped.failures] == [(6, "ValueError: poisoned")]


@pytest.mark.parametrize("kind", ["inline", "thread", "process"])
async def test_a_coroutine_function_is_always_awaited_on_the_event_loop(kind: ExecutorKind) -> None:
    mapped = await Executor(kind, 1).map(whereabouts_async, spec_of(whereabouts_async), BATCH)
    assert mapped.table is not None
    assert set(mapped.table.column("thread").to_pylist()) == {threading.get_ident()}


@map_record(concurrency=3)
def together(record: Record) -> dict[str, int]:
    return {"others": BARRIER.wait(timeout=60)}


BARRIER = threading.Barrier(3)


async def test_concurrent_calls_wait_for_no_processor() -> None:
    executor = Executor("thread", 1)
    async with executor._limiter:
        mapped = await executor.map(together, spec_of(together), BATCH)
    assert mapped.table is not None
    assert set(mapped.table.column("others").to_pylist()) == {0, 1, 2}


TALKATIVE = """
import logging
from kmr import map_record

log = logging.getLogger(__name__)
print("imported")

@map_record
def talk(record):
    print("printed", record.offset)
    log.info("logged %s", record.offset)
    return 7 if record.value == b"wrong" else None
"""


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_what_a_map_prints_and_logs_is_not_lost(
    kind: ExecutorKind,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    name = f"talkative_in_a_{kind}"
    (tmp_path / f"{name}.py").write_text(TALKATIVE)
    monkeypatch.syspath_prepend(tmp_path)
    talk = importlib.import_module(name).talk
    logs = LogSettings(format="json")
    setup_logs(logs)
    executor = Executor(kind, 1, logs)
    capfd.readouterr()
    await executor.map(talk, spec_of(talk), batch_of("t", 0, 5, [b"a", b"b"]))
    mapped = await executor.map(talk, spec_of(talk), batch_of("t", 0, 7, [b"a", b"wrong"]))
    assert [(each.offset, "returned int" in each.reason) for each in mapped.failures] == [(8, True)]
    out, err = capfd.readouterr()
    printed = [f"printed {offset}" for offset in (5, 6, 7, 8)]
    assert out.splitlines() == (["imported"] if kind == "process" else []) + printed
    events = [json.loads(line) for line in err.splitlines()]
    assert [event["event"] for event in events] == [f"logged {offset}" for offset in (5, 6, 7, 8)]
    assert {event["logger"] for event in events} == {name}


async def test_the_event_loop_goes_on_while_user_code_runs() -> None:
    begun, go_on = threading.Event(), threading.Event()

    @map_record
    def waiting(record: Record) -> None:
        begun.set()
        assert go_on.wait(timeout=60)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Executor("thread", 1).map, waiting, spec_of(waiting), BATCH)
        await anyio.to_thread.run_sync(begun.wait)
        go_on.set()


SLOW = """
import time
from kmr import map_record

@map_record
def slow(record):
    time.sleep(0.4)
    return {"o": record.offset}
"""


async def test_a_slow_map_in_a_process_returns_before_the_end_of_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = of_a_user("slow", SLOW, tmp_path, monkeypatch)
    batch = batch_of("t", 0, 5, [b""] * 50)
    mapped = await Executor("process", 1).map(slow, spec_of(slow), batch)
    assert mapped.rest is not None
    assert mapped.offsets.tolist() == list(range(5, mapped.rest))
    assert mapped.rest < 45


DEADLY = """
import os
from kmr import map_record

@map_record
def deadly(record):
    os._exit(9)
"""


async def test_a_process_that_ends_in_a_map_is_named_with_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly = of_a_user("deadly", DEADLY, tmp_path, monkeypatch)
    with pytest.raises(
        StrategyError, match=r"the process that mapped <Batch t-0\[5\.\.7\].* has ended"
    ):
        await Executor("process", 1).map(deadly, spec_of(deadly), BATCH)


@map_batch
def refused(records: object) -> None:
    raise AssertionError("it must not begin")


@pytest.mark.parametrize("kind", ["inline", "thread", "process"])
async def test_a_map_that_waits_for_its_turn_does_not_begin_after_it_was_stopped(
    kind: ExecutorKind,
) -> None:
    stop = Stop()
    stop.request()
    mapped = await Executor(kind, 1).map(refused, spec_of(refused), BATCH, stop=stop)
    assert (mapped.table, mapped.failures, mapped.rest) == (None, (), 5)


async def test_warm_processes_have_imported_the_map_and_take_the_first_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports = tmp_path / "imports"
    imports.touch()
    (tmp_path / "that_counts.py").write_text(
        f"import os\nos.write(os.open({str(imports)!r}, os.O_WRONLY | os.O_APPEND), b'%d ' % os.getpid())\n"
        + MODULE
    )
    monkeypatch.syspath_prepend(tmp_path)
    whereabouts = importlib.import_module("that_counts").whereabouts
    executor = Executor("process", 2)
    strategy = Strategy(whereabouts, [MemoryWriter(Journal())])
    await executor.open(strategy)
    await executor.warm_up(strategy)
    warm = set(map(int, imports.read_text().split())) - {os.getpid()}
    assert len(warm) == 2
    mapped = await executor.map(whereabouts, spec_of(whereabouts), BATCH)
    assert mapped.table is not None
    assert set(mapped.table.column("process").to_pylist()) <= warm
    assert set(map(int, imports.read_text().split())) == {os.getpid(), *warm}


async def test_a_map_that_another_process_cannot_import_is_refused_before_the_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    whereabouts = importlib.import_module("only_here").whereabouts
    (tmp_path / "only_here.py").write_text("raise RuntimeError('no such device')")
    strategy = Strategy(whereabouts, [MemoryWriter(Journal())])
    with pytest.RaisesGroup(
        pytest.RaisesExc(StrategyError, match="cannot import the map: RuntimeError: no such device")
    ):
        await Executor("process", 1).warm_up(strategy)
