"""Reads a topic of dead letters: all letters, the passes over them, and the letters that are still open."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from aiokafka import AIOKafkaProducer

from ..errors import ConsumerError
from ..kafka.admin import connect_admin, explain_refusal
from ..kafka.reading import read_topic
from ..record import TopicPartition
from .letters import CONTROL_HEADER, Letters, letters_among, original_records
from .passes import covered, group_of, passes_among

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ..kafka.connection import ConnectionConfig
    from .passes import Pass


class TopicLetters(NamedTuple):
    """The letters of a topic and the passes over them.

    Attributes:
        masks: the letters that each pass covers.
        open: those that no pass covers.
        ends: the end of each partition of the topic.
    """

    letters: Letters
    passes: list[Pass]
    masks: list[NDArray[np.bool_]]
    open: NDArray[np.bool_]
    ends: dict[int, int]


async def read_letters(config: ConnectionConfig, topic: str) -> TopicLetters:
    """Read a whole topic; keep places and headers, not keys and values.

    Raises:
        BrokerUnavailable: no broker answers.
        ConsumerError: there is no such topic, or the broker refuses.
    """
    tables: list[pa.Table] = []
    passes: list[Pass] = []
    ends: Counter[int] = Counter()
    async for batch in read_topic(config, topic):
        tables.append(letters_among(batch.records))
        passes += passes_among(batch.records)
        ends[batch.partition] = batch.last + 1
    letters = Letters.of(tables)
    open_, masks = covered(letters, passes)
    return TopicLetters(letters, passes, masks, open_, dict(ends))


async def find_letters(
    config: ConnectionConfig, topic: str, wanted: TopicPartition, offset: int, *, of_record: bool
) -> list[pa.RecordBatch]:
    """Return each letter at a place, or of the record at a place, as a batch of one row.

    Raises:
        ConsumerError: there is none; also as `read_letters`.
    """
    found = []
    async for batch in read_topic(config, topic):
        records = batch.records
        places = original_records(records) if of_record else records
        here = (places.column("offset").to_numpy() == offset) & (
            places.column("partition").to_numpy() == wanted.partition
        )
        found += [
            records.slice(row, 1)
            for row in np.flatnonzero(here).tolist()
            if places.column("topic")[row].as_py() == wanted.topic
        ]
    if not found:
        raise ConsumerError(f"{topic} has no letter for {wanted} offset {offset}")
    return found


async def read_values(
    config: ConnectionConfig, topic: str, offsets: Mapping[int, NDArray[np.int64]]
) -> list[bytes | None]:
    """Return the values of letters, by partition and offset of their topic. Raises as `read_letters`."""
    found: list[bytes | None] = []
    async for batch in read_topic(config, topic):
        wanted = np.isin(batch.offsets(), offsets.get(batch.partition, ()))
        found += batch.records.column("value").filter(pa.array(wanted)).to_pylist()
    return found


async def unfinished_pass(
    config: ConnectionConfig, topic: str, known: TopicLetters
) -> tuple[Pass, NDArray[np.bool_]] | None:
    """Return the replay that has letters beyond its committed offsets, and all letters that it covers.

    None if every replay has ended. Raises ConsumerError.
    """
    async with connect_admin(config) as admin:
        for each, mask in zip(known.passes, known.masks, strict=True):
            if each.action == "drop":
                continue
            committed = await admin.list_group_offsets(group_of(topic, each.name))
            for partition, offsets in known.letters.offsets_by_partition(mask).items():
                entry = committed.get(TopicPartition(topic, partition))
                if entry is None or entry.offset <= offsets[-1]:
                    return each, mask
    return None


async def write_pass(config: ConnectionConfig, topic: str, new: Pass) -> None:
    """Append a pass to the topic; it is durable when this returns. Raises ConsumerError."""
    producer = AIOKafkaProducer(**config.client_options(), enable_idempotence=True)
    with explain_refusal(f"a record for {topic}", config):
        await producer.start()
        try:
            headers = [(CONTROL_HEADER, new.name.encode())]
            await producer.send_and_wait(
                topic, msgspec.json.encode(new), partition=0, headers=headers
            )
        finally:
            await producer.stop()
