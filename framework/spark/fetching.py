"""Reading one range of one partition inside a task: whole fetch responses, the next one already asked for."""

from __future__ import annotations

import time
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

import aiokafka.errors
import numpy as np
import structlog
from aiokafka.errors import KafkaError

from framework.decode.decoder import Decoder
from framework.errors import ConsumerError, OffsetOutOfRange
from framework.record import Batch
from framework.spark.offsets import DATA_LOSS_ADVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from framework.spark.client import Client, Fetched
    from framework.spark.offsets import OffsetRange
    from framework.spark.properties import ClientConfig

__all__ = ["read_range"]

_log = structlog.get_logger(__name__)

_RETRY_AFTER: Final = 0.1  # seconds; also how often a partition is asked that has nothing yet
_OUT_OF_RANGE: Final = 1


def read_range(
    client: Client, wanted: OffsetRange, *, fail_on_data_loss: bool, timeout: float
) -> Iterator[Batch]:
    """The records of a range, in order, as batches that are decoded when they are looked at.

    The batches' own ranges follow each other without a gap, and together are the whole range.

    Args:
        timeout: seconds without anything new after which the range counts as unreadable.

    Raises:
        OffsetOutOfRange: records of the range are gone, and `fail_on_data_loss`.
        ConsumerError: the broker does not deliver the range.
        CorruptRecords: a record batch is damaged.
    """
    partition = wanted.topic_partition
    decoder = _decoder(client.config)
    position = wanted.first
    deadline = time.monotonic() + timeout
    coming = client.fetch(partition, position)
    while position < wanted.end:
        trouble = "there are no records yet"
        fetched: Fetched | None = None
        try:
            fetched = coming.result()
        except KafkaError as error:
            trouble = repr(error)
        if fetched is not None and fetched.error == _OUT_OF_RANGE:
            position = _after_loss(client, wanted, position, fail=fail_on_data_loss)
            if position < wanted.end:
                coming = client.fetch(partition, position)
            continue
        if fetched is not None and fetched.error:
            trouble = aiokafka.errors.for_code(fetched.error).__name__
        elif fetched is not None and fetched.data:
            batch = decoder.batch(
                partition.topic, partition.partition, fetched.data, position, fetched.aborted
            )
            if batch is not None:
                deadline = time.monotonic() + timeout
                position = batch.last + 1
                if position < wanted.end:
                    coming = client.fetch(partition, position)
                yield batch if batch.last < wanted.end else _cut(batch, wanted.end)
                continue
        if time.monotonic() >= deadline:
            _give_up(wanted, position, trouble, timeout, fail=fail_on_data_loss)
            return
        if fetched is None or fetched.error:
            time.sleep(_RETRY_AFTER)
        coming = client.fetch(partition, position)


@lru_cache(maxsize=32)
def _decoder(config: ClientConfig) -> Decoder:
    """Kept for the tasks that this process runs later: it learns how far a topic's batches expand."""
    return Decoder(
        read_committed=config.isolation_level == "read_committed", check_crcs=config.check_crcs
    )


def _cut(batch: Batch, end: int) -> Batch:
    """The same without the records from `end` on."""
    return Batch(
        batch.topic,
        batch.partition,
        batch.first,
        end - 1,
        nbytes=batch.nbytes,
        load=partial(_before, batch, end),
        max_timestamp_ms=batch.max_timestamp_ms,
    )


def _before(batch: Batch, end: int) -> pa.RecordBatch:
    return batch.records.slice(0, int(np.searchsorted(batch.offsets(), end)))


def _after_loss(client: Client, wanted: OffsetRange, position: int, *, fail: bool) -> int:
    """The next offset of the range that the broker still has; it does not have `position`."""
    partition = wanted.topic_partition
    beginning = client.beginnings([partition])[partition]
    end = client.ends([partition])[partition]
    where = f"{partition}: offset {position} is gone; the broker has {beginning} to {end - 1}"
    if fail:
        raise OffsetOutOfRange(f"{where} (wanted: {wanted}). {DATA_LOSS_ADVICE}")
    following = beginning if position < beginning < wanted.end else wanted.end
    _log.warning("records are gone, going on after them", where=where, next=following)
    return following


def _give_up(
    wanted: OffsetRange, position: int, trouble: str, timeout: float, *, fail: bool
) -> None:
    reason = f"{wanted.topic_partition}: nothing at offset {position} of {wanted} in {timeout:g} s: {trouble}"
    if fail:
        raise ConsumerError(f"{reason}. {DATA_LOSS_ADVICE}")
    _log.warning("records cannot be read, going on after them", reason=reason)
