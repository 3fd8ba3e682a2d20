"""Writers that stop for ever around a write, so that their worker is killed there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import anyio

from kmr.sinks import ClickHouseWriter, KafkaWriter, ParquetWriter, PostgresWriter
from kmr.worker import Worker
from tests.framework.workers import until_settled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from kmr.record import TopicPartition
    from kmr.settings import Settings
    from kmr.sinks import RangeRows
    from kmr.strategy import Strategy

Moment = Literal["before", "after"]


class Dying:
    """Stops for ever around a write; the test kills the worker then."""

    plan: ClassVar[list[tuple[int, Moment]]] = []  # the writes until the next death, and its moment
    here = anyio.Event()

    @classmethod
    async def around(cls, write: Callable[[], Any]) -> Any:
        moment = ""
        if cls.plan:
            left, next_ = cls.plan[0]
            cls.plan[0] = (left - 1, next_)
            moment = next_ if left == 0 else ""
        if moment == "before":
            await cls.hang()
        result = await write()
        if moment == "after":
            await cls.hang()
        return result

    @classmethod
    async def hang(cls) -> None:
        cls.here.set()
        await anyio.sleep_forever()


class DyingPostgresWriter(PostgresWriter):
    async def write(self, rows: RangeRows) -> Any:
        write = super().write
        return await Dying.around(lambda: write(rows))


class DyingTogetherPostgresWriter(PostgresWriter):
    """Dies around a transaction of several partitions."""

    async def write_together(self, ranges: Sequence[RangeRows]) -> Any:
        write = super().write_together
        return await Dying.around(lambda: write(ranges))


class DyingClickHouseWriter(ClickHouseWriter):
    async def write(self, rows: RangeRows) -> Any:
        write = super().write
        return await Dying.around(lambda: write(rows))


class DyingParquetWriter(ParquetWriter):
    async def write(self, rows: RangeRows) -> Any:  # type: ignore[override]
        write = super().write
        return await Dying.around(lambda: anyio.to_thread.run_sync(write, rows))


class DyingKafkaWriter(KafkaWriter):
    async def flush(self, *given: Any) -> Any:
        flush = super().flush
        return await Dying.around(lambda: flush(*given))


async def run_until_all_died(
    strategy: Strategy,
    settings: Settings,
    after_each: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run one worker after the other, until each death of `Dying.plan` has happened."""
    while Dying.plan:
        Dying.here = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Worker(strategy, settings).run)
            await Dying.here.wait()
            tasks.cancel_scope.cancel()
        Dying.plan.pop(0)
        if after_each is not None:
            await after_each()


async def run_until_settled(
    strategy: Strategy, settings: Settings, records: Mapping[TopicPartition, int]
) -> None:
    """Run a worker until it has settled so many records of each partition."""
    worker = Worker(strategy, settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await worker.ready()
        for partition, count in records.items():
            await until_settled(worker, partition, count)
        worker.shutdown("done")
