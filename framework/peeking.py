"""Look at the records of a topic, and at what a map makes of them, without a group or a commit."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import anyio
import numpy as np
import pyarrow as pa
import structlog

from .arguments import checked
from .config.layers import by_dotted_name
from .errors import StrategyError
from .kafka.connection import connection_config
from .kafka.reading import RecordSelection, read_topic
from .mapping.executor import Executor
from .mapping.inputs import Inputs
from .record import RECORD_OFFSET, SCHEMA, Batch
from .settings import CLUSTER
from .values.value_format import require_format

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from typing import Any

    from .kafka.connection import ConnectionConfig
    from .mapping.results import MapResult
    from .strategy import Strategy
    from .values.value_format import ValueFormat

_log = structlog.get_logger(__name__)


class MappedRecords(NamedTuple):
    """Records, the result of their map, and the seconds that the map took."""

    batch: Batch
    result: MapResult
    seconds: float


async def peek(
    config: ConnectionConfig, strategy: Strategy, topic: str, window: RecordSelection
) -> AsyncIterator[MappedRecords]:
    """Map the records of a topic as a worker would; reducers are not called.

    Raises:
        KmrError: no broker answers, there is no such topic, or the map returned what can be no rows.
    """
    async for mapped in map_batches(config, strategy, topic, _batches(config, topic, window)):
        yield mapped


async def map_batches(
    config: ConnectionConfig, strategy: Strategy, topic: str, batches: AsyncIterator[Batch]
) -> AsyncIterator[MappedRecords]:
    """Map batches of a topic as a worker would; reducers are not called.

    Raises:
        KmrError: of `batches`, or the map returned what can be no rows.
    """
    part = strategy.of_topic(topic)
    executor = Executor()
    await executor.open(strategy, config)
    try:
        await executor.warm_up(strategy)
        async for batch in batches:
            begun = time.perf_counter()
            result = await executor.map(part.map, part.map_spec, batch)
            yield MappedRecords(batch, result, time.perf_counter() - begun)
    finally:
        await executor.close()


async def _batches(
    config: ConnectionConfig, topic: str, window: RecordSelection
) -> AsyncIterator[Batch]:
    if window.follow or window.last is None:
        async for batch in read_topic(config, topic, window):
            yield batch
        return
    for batch in newest([batch async for batch in read_topic(config, topic, window)], window.last):
        yield batch


def newest(batches: Sequence[Batch], count: int) -> list[Batch]:
    """Return the newest records of all partitions, by their timestamps; in the order in which they came."""
    batches = [batch for batch in batches if len(batch)]
    if not batches:
        return []
    times = np.concatenate([b.records.column("timestamp").cast(pa.int64()) for b in batches])
    kept = np.zeros(len(times), np.bool_)
    kept[np.argsort(times, kind="stable")[-count:]] = True
    parts = np.split(kept, np.cumsum([len(batch) for batch in batches])[:-1])
    chosen = (b.records.filter(pa.array(part)) for b, part in zip(batches, parts, strict=True))
    return [Batch.of(records) for records in chosen if len(records)]


@checked("kmr.read")
def read(
    topic: str,
    *,
    value: ValueFormat | None = None,
    key: ValueFormat | None = None,
    last: int | None = None,
    since: int | None = None,
    **settings: Any,
) -> pa.Table:
    """Return the records of a topic as an Arrow table; nothing is committed, and no group is joined.

    Example:
        ```python
        import kmr

        def orders():
            return kmr.read("orders", value=kmr.Text(), last=10_000)
        ```

    Args:
        value: the format of values: the table has its columns, and topic, partition, offset, timestamp, key
            and headers of each record. Values that cannot be decoded are left out, and a warning says how
            many. A null value is a row of nulls. None: their bytes.
        key: the format of keys.
        last: only the newest records, so many of all partitions; None: all that the topic has now.
        since: only records from this time on, in milliseconds since 1970.
        settings: those of the connection: `bootstrap_servers`, `client_id`, `security`; what is not given
            comes from the environment (`KMR_BOOTSTRAP_SERVERS`), else it is the default.

    Raises:
        StrategyError: an argument has a wrong type.
        SettingsError: a setting is unknown or not allowed.
        ConsumerError: no broker answers, or there is no such topic.
    """
    if last is not None and last < 1:
        raise StrategyError(f"kmr.read: last must be at least 1, not {last}")
    for name, form in (("value", value), ("key", key)):
        if form is not None:
            require_format(f"kmr.read: {name}=", form)
    config = connection_config(CLUSTER.load(None, os.environ, by_dotted_name(settings)))
    window = RecordSelection(last, since)

    async def collect() -> list[Batch]:
        return [batch async for batch in _batches(config, topic, window)]

    # In a thread of its own, because an event loop may run in the caller's.
    with ThreadPoolExecutor(1) as pool:
        batches = pool.submit(anyio.run, collect).result()
    inputs = Inputs(value, key, tombstones="null")
    nothing = pa.RecordBatch.from_pylist([], schema=SCHEMA)
    decoded = [inputs.columns(each) for each in (nothing, *(batch.records for batch in batches))]
    failures = [failure for _, failed in decoded for failure in failed]
    if failures:
        _log.warning(
            "records cannot be decoded",
            topic=topic,
            records=len(failures),
            first=failures[0].reason,
        )
    return pa.Table.from_batches([columns for columns, _ in decoded]).drop_columns([RECORD_OFFSET])
