"""Read the topic of a table before the first record, and follow it."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import anyio
import msgspec
import structlog

from ..errors import ConsumerError
from ..kafka.reading import ReadingProgress, RecordSelection, read_topic
from ..service.threads import run_in_thread
from .columns_table import ColumnsStore
from .follower import Follower
from .objects_table import ObjectsStore

if TYPE_CHECKING:
    import asyncio

    import pyarrow as pa

    from ..errors import KmrError
    from ..kafka.connection import ConnectionConfig
    from ..observe.status import TableStatus
    from ..record import TopicPartition
    from .lookup import Lookup
    from .store import Store
    from .table import LookupTable

_log = structlog.get_logger(__name__)

_PROGRESS: Final = 5.0  # seconds between lines of the log while a table is loaded


class TopicFollower(Follower):
    """A table of a compacted topic; `as_columns`: for a per-batch map."""

    _again = 1.0

    def __init__(
        self, name: str, lookup: Lookup, config: ConnectionConfig, *, as_columns: bool
    ) -> None:
        super().__init__(name, lookup)
        self._lookup, self._config = lookup, config
        self._make = ColumnsStore if as_columns else ObjectsStore
        self._progress = ReadingProgress()
        self._applied: dict[TopicPartition, int] = {}
        self._rejected = 0

    @property
    def stale(self) -> float:
        self._look()
        return super().stale

    def _look(self) -> None:
        known = self._progress.current_at()
        if known is not None and self._problem is None and self._table is not None:
            self._current_at = known

    def status(self) -> TableStatus:
        progress = self._progress
        return msgspec.structs.replace(super().status(), read=progress.read, of=progress.of)

    async def catch_up(self) -> None:
        ends = await self._progress.ends()
        while self._problem is not None or any(
            self._applied.get(at, self._progress.starts[at]) < end for at, end in ends.items()
        ):
            await self._passed.wait()

    def _may_pass(self, error: KmrError) -> bool:
        return isinstance(error, ConsumerError)

    async def _read(self, loaded: asyncio.Future[None]) -> None:
        store = self._make(self.name, self._lookup)
        progress = self._progress = ReadingProgress()
        self._applied = {}
        said = anyio.current_time()
        times: dict[int, int] = {}
        is_live = False

        def publish() -> None:
            nonlocal is_live
            is_live = True
            self._publish(store.table(), loaded, store.nbytes)

        def apply(records: pa.RecordBatch) -> LookupTable | None:
            store.apply(records)
            return store.table() if is_live else None

        window = RecordSelection(follow=True, caught_up=publish, progress=progress)
        async with aclosing(read_topic(self._config, self._lookup.topic, window)) as batches:
            async for batch in batches:
                made = await run_in_thread(apply, batch.records)
                self._table = self._table if made is None else made
                self._look()
                self._report(store)
                times[batch.partition] = max(times.get(batch.partition, -1), batch.max_timestamp_ms)
                passed = min(times.get(at.partition, -1) for at in progress.starts)
                self.passed_ms = max(self.passed_ms, passed)
                self._applied[batch.topic_partition] = batch.last + 1
                self._passed.notify()
                now = anyio.current_time()
                if not is_live and now - said > _PROGRESS:
                    said = now
                    _log.info("loading a look-up table", progress=str(self.status()))

    def _report(self, store: Store) -> None:
        if store.rejected > self._rejected:
            _log.warning(
                "records of a look-up table make no row",
                table=self.name,
                topic=self._lookup.topic,
                records=store.rejected,
                last=store.example,
            )
        self._rejected = store.rejected
