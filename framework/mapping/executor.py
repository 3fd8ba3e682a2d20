"""Where the user's map function runs: in a thread, in a process, or on the event loop."""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from io import StringIO
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
from anyio import to_process

from ..errors import KmrError, StrategyError, as_exception
from ..observe.logs import in_every_event, setup_logs
from ..service.process import end_with_parent
from ..service.threads import background_loop, run_in_thread
from ..settings import LogSettings
from .functions import apply, apply_async
from .resources import OpenResources, OpenTables, tables_of
from .results import NO_OFFSETS, MapResult
from .stop import Stop
from .together import Together, can_share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from ..kafka.connection import ConnectionConfig
    from ..lookups.tables import Tables
    from ..record import Batch
    from ..settings import ExecutorKind
    from ..strategy import Strategy
    from .functions import MapSpec

LONGEST: Final = 1.0
"""Seconds after which a per-record map ends before its next record, so that its rows go on, and a drain,
a rebalance or a lost partition does not wait for the rest of the batch."""

LONGEST_WINDOW: Final = 10.0
"""The same for a map with several calls at a time: at its end they wait for the slowest one."""


_PROCESS_ENDED: Final = (
    "executor='process': the process that mapped {batch!r} has ended: it was killed, as by the system when "
    "memory is short, or the map ended it (os._exit, a library that crashes). Nothing of this batch is "
    "committed: it comes again. Give the worker more memory, or let max_batch_records be smaller"
)


class Executor:
    """Applies map functions to batches, with one hand-over to a thread or process per batch.

    Args:
        kind: `thread` (the default: user code never delays heartbeats), `process` (for functions that
            hold the interpreter lock for long; they must be importable), or `inline` (for tests, and for
            functions that are cheaper than a thread).
        workers: how many batches are mapped at a time; None is the number of processors.
        logs: how other processes log. What they log and print is written to the streams of this process
            after each batch; what a process that dies had not handed over is lost.
    """

    def __init__(
        self,
        kind: ExecutorKind = "thread",
        workers: int | None = None,
        logs: LogSettings | None = None,
    ) -> None:
        self.kind = kind
        self._logs = logs or LogSettings()
        self._limiter = anyio.CapacityLimiter(workers or os.cpu_count() or 1)
        self._unlimited = anyio.CapacityLimiter(math.inf)
        self._resources: OpenResources | None = None
        self._tables: OpenTables | None = None
        self._factory: bytes | None = None
        self._opened_in: set[int] = set()

    async def open(self, strategy: Strategy, config: ConnectionConfig | None = None) -> None:
        """Open the resources of a strategy, if it has any, where its maps run; load its tables.

        With `process` that is one process; the others open them in `warm_up`.

        Args:
            config: of the brokers that have the topics of tables; None: there are none.

        Raises:
            StrategyError: they cannot be opened, or not in another process.
        """
        are_async = {part.map_spec.is_async for part in strategy.parts}
        in_processes = self.kind == "process" and False in are_async
        if in_processes:
            strategy.require_pickle()
        if strategy.tables:
            self._tables = OpenTables(self._tables_of(strategy, config))
            await self._tables.open()
        if strategy.resources is None:
            return
        if self.kind != "process" or True in are_async:
            self._resources = OpenResources(strategy.resources)
            await self._resources.open()
        if in_processes:
            self._factory = pickle.dumps(strategy.resources)
            await self._in_process(partial(_open_here, self._factory))

    def _tables_of(self, strategy: Strategy, config: ConnectionConfig | None) -> Tables:
        if self.kind == "process" and not all(part.map_spec.is_async for part in strategy.parts):
            raise StrategyError(
                "tables= and executor='process': the tables are in the memory of the worker, not of its "
                "processes; use executor='thread', and --workers for more processors"
            )
        return tables_of(strategy, config)

    @property
    def tables(self) -> Tables | None:
        """The tables of the strategy, also while they are loaded; None without any."""
        return None if self._tables is None else self._tables.tables

    def _bind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        for each in (self._tables, self._resources):
            if each is not None:
                function = each.bind(function)
        return function

    async def warm_up(self, strategy: Strategy) -> None:
        """Do what the first batch would wait for: load what formats decode with, and start the processes.

        Raises:
            StrategyError: a process cannot be started, or cannot import the map.
        """
        for part in strategy.parts:
            await run_in_thread(part.map_spec.inputs.warm_up)
        plain = [(p.map, p.map_spec) for p in strategy.parts if not p.map_spec.is_async]
        if self.kind == "process" and plain:
            load = partial(_load_here, plain, self._factory)
            async with anyio.create_task_group() as tasks:
                # At the same time, so that each call has another process.
                for _ in range(int(self._limiter.total_tokens)):
                    tasks.start_soon(self._warm_up_process, load)

    async def _warm_up_process(self, load: Callable[[], None]) -> None:
        try:
            await self._in_process(load)
        except KmrError:
            raise
        except Exception as error:
            cause = error if error.__cause__ is None else error.__cause__
            raise StrategyError(
                "executor='process': a process cannot start, or cannot import the map: "
                f"{type(cause).__name__}: {cause}"
            ) from error

    async def close(self) -> None:
        """Close the resources, also after a failure. Raises StrategyError if that fails.

        Those of a process that was killed, because its map hung or it was idle for five minutes, are not.
        """
        for each in (self._tables, self._resources):
            if each is not None:
                await each.close()
        if self._factory is not None:
            close = partial(_close_here, self._factory)
            # At the same time, so that each call has another process.
            await asyncio.gather(*(self._in_process(close) for _ in self._opened_in))

    async def map(
        self,
        function: Callable[..., Any] | None,
        spec: MapSpec,
        batch: Batch,
        on_begin: Callable[[], None] = lambda: None,
        stop: Stop | None = None,
    ) -> MapResult:
        """Apply a function to a batch. A coroutine function is awaited on the event loop.

        Args:
            function: marked, as `spec` says; None if the columns of the values are the rows.
            spec: how it is called.
            batch: its records are decoded here, if they are not yet.
            on_begin: called when it is this batch's turn to have a thread or process.
            stop: ends a per-record map before its next record, and any map that waits for its turn. It does
                not reach another process: there a per-record map ends by itself after `LONGEST` seconds.

        Returns:
            The rows of the batch; `rest` says where it ended before the end of the batch.

        Raises:
            StrategyError: the function returned a value that cannot become rows, or its process has ended.
            CorruptRecords: the batch cannot be decoded.
        """
        is_elsewhere = self.kind == "process" and not (spec.is_async and function is not None)
        if function is not None and not is_elsewhere:
            function = self._bind(function)
        if self.kind == "inline":
            records = batch.records
        elif self.kind == "thread" and not spec.is_async:
            # The threads of concurrent calls wait most of the time.
            is_concurrent = spec.calls is not None and spec.calls.concurrency > 1
            async with nullcontext() if is_concurrent else self._limiter:
                on_begin()
                return await run_in_thread(
                    partial(_apply_timed, function, batch, spec, stop),
                    abandon_on_cancel=True,
                    limiter=self._unlimited,
                )
        else:
            records = await run_in_thread(
                lambda: batch.records, abandon_on_cancel=True, limiter=self._limiter
            )
        if spec.is_async and function is not None:
            on_begin()
            in_thread = self.kind != "inline"
            return await apply_async(function, records, spec, stop, decode_in_thread=in_thread)
        if is_elsewhere:
            async with self._limiter:
                if stop is not None and stop.requested:
                    return MapResult(None, NO_OFFSETS, rest=batch.first)
                on_begin()
                factory = None if function is None else self._factory
                call = partial(_apply_here, function, spec, factory)
                try:
                    result: MapResult = await self._in_process(call, records)
                except anyio.BrokenWorkerProcess as error:
                    raise StrategyError(_PROCESS_ENDED.format(batch=batch)) from error
                return result
        on_begin()
        return apply(function, records, spec, stop)

    def together(
        self,
        function: Callable[..., Any] | None,
        spec: MapSpec,
        batches: Sequence[Batch],
        stop: Stop,
    ) -> Together:
        """Return a map of batches of several partitions, for `map_together`. Only if `can_share`."""
        if function is not None:
            function = self._bind(function)
        return Together(function, spec, batches, stop)

    def can_share(self, spec: MapSpec) -> bool:
        """Return whether the maps of several partitions may be one call of a thread."""
        return self.kind != "process" and can_share(spec)

    async def map_together(self, together: Together, on_begin: Callable[[], None]) -> None:
        """Map batches of several partitions with one hand-over; see `Together.work`."""
        if self.kind == "inline":
            on_begin()
            together.work()
            return
        async with self._limiter:
            on_begin()
            await run_in_thread(together.work, abandon_on_cancel=True, limiter=self._unlimited)

    async def _in_process(self, call: Callable[..., Any], *arguments: object) -> Any:
        """Call a function in a process of anyio's, and write here what it prints and logs there."""
        done = await to_process.run_sync(
            partial(
                _call_here,
                pickle.dumps(call),
                arguments,
                self._logs,
                parent=os.getpid(),
                terminal=sys.stderr.isatty(),
                always=tuple(in_every_event().items()),
            ),
            cancellable=True,
            limiter=self._unlimited,
        )
        self._opened_in.add(done.process)
        for stream, text in ((sys.stdout, done.stdout), (sys.stderr, done.stderr)):
            if text:
                await run_in_thread(stream.write, text)
        if isinstance(done.result, Exception):
            raise done.result
        return done.result

    async def cut(self, batch: Batch, most: int) -> tuple[Batch, Batch | None]:
        """Return the first part of a batch, of at most `most` records, and the rest (`Batch.cut`).

        Raises:
            CorruptRecords: the batch cannot be decoded.
        """
        if self.kind == "inline" or batch.last - batch.first < most:
            return batch.cut(most)
        return await run_in_thread(batch.cut, most, abandon_on_cancel=True, limiter=self._limiter)


def _apply_timed(
    function: Callable[..., Any] | None, batch: Batch, spec: MapSpec, stop: Stop | None
) -> MapResult:
    """Map a batch; the result has the seconds without those until a busy event loop notices it."""
    started = time.perf_counter()
    result = apply(function, batch.records, spec, stop)
    return replace(result, seconds=time.perf_counter() - started)


class _ProcessAnswer(NamedTuple):
    """The outcome of a call in another process, its process id, and the text that it wrote meanwhile."""

    result: Any
    process: int
    stdout: str
    stderr: str


class _CapturedStream(StringIO):
    """A standard stream of another process, read after each call."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def take(self) -> str:
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


def _call_here(
    call: bytes,
    arguments: tuple[object, ...],
    logs: LogSettings,
    *,
    parent: int,
    terminal: bool,
    always: tuple[tuple[str, object], ...],
) -> _ProcessAnswer:
    """Call a pickled function in a process of anyio's."""
    stdout, stderr = _prepare_process(logs, parent=parent, terminal=terminal, always=always)
    try:
        # Loaded only now: the import of the user's module may print and log too.
        result = pickle.loads(call)(*arguments)  # noqa: S301  our own bytes
    except BaseException as error:  # noqa: BLE001  raised by `Executor._in_process`
        result = as_exception(error)
    return _ProcessAnswer(result, os.getpid(), stdout.take(), stderr.take())


def _apply_here(
    function: Callable[..., Any] | None,
    spec: MapSpec,
    factory: bytes | None,
    records: pa.RecordBatch,
) -> MapResult:
    """Apply a map, with the resources that the pickled factory makes."""
    if factory is not None and function is not None:
        function = _opened_here(factory).bind(function)
    stop = Stop()
    done = Event()
    Thread(target=_expire, args=(stop, done), daemon=True).start()
    try:
        return apply(function, records, spec, stop)
    finally:
        done.set()


@cache
def _opened_here(factory: bytes) -> OpenResources:
    resources = OpenResources(pickle.loads(factory))  # noqa: S301  our own bytes
    asyncio.run_coroutine_threadsafe(resources.open(), background_loop()).result()
    return resources


def _open_here(factory: bytes) -> None:
    _opened_here(factory)


def _load_here(
    maps: Sequence[tuple[Callable[..., Any] | None, MapSpec]], factory: bytes | None
) -> None:
    """Load what the formats decode with, and open the resources; the maps are imported by now."""
    for _, spec in maps:
        spec.inputs.warm_up()
    if factory is not None:
        _opened_here(factory)


def _close_here(factory: bytes) -> None:
    """Close the resources of this process, if it has opened them."""
    if _opened_here.cache_info().currsize:
        resources = _opened_here(factory)
        _opened_here.cache_clear()
        asyncio.run_coroutine_threadsafe(resources.close(), background_loop()).result()


def _expire(stop: Stop, done: Event) -> None:
    while not done.wait(LONGEST):
        stop.expire()


@cache
def _prepare_process(
    logs: LogSettings, *, parent: int, terminal: bool, always: tuple[tuple[str, object], ...]
) -> tuple[_CapturedStream, _CapturedStream]:
    """Collect what is printed and logged: anyio sends it to nowhere. End with the worker.

    The file descriptors cannot be used: that of stdout carries the results, and that of stderr is a pipe
    that is never read, in which a writer would wait for ever when it is full.
    """
    end_with_parent(parent)  # a map that hangs would outlive a worker that is killed
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.stdout, sys.stderr = streams = (
        _CapturedStream(terminal=False),
        _CapturedStream(terminal=terminal),
    )
    setup_logs(logs, **dict(always))
    return streams
