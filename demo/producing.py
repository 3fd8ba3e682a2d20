"""The flights go into the topic: those of the history at once, those of the present at a pace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from demo.flights import messages
from demo.services import TOPIC
from kmr.broker.client import BatchProducer

if TYPE_CHECKING:
    import pyarrow as pa

    from demo.outcome import Standing

__all__ = ["RECORDS_PER_SECOND", "produce"]

RECORDS_PER_SECOND: Final = 20_000
"""The pace of the present: it leaves time to watch."""

_CHUNK: Final = 2_000


async def produce(broker: str, flights: pa.Table, standing: Standing, rate: int | None) -> None:
    """Send flights, and count them in `standing`; at most `rate` a second."""
    begun, sent = anyio.current_time(), 0
    async with BatchProducer(broker, TOPIC, compression="lz4") as producer:
        for keys, values in messages(flights, _CHUNK):
            await producer.send(values, keys)
            standing.produced += len(values)
            sent += len(values)
            if rate is not None:
                await anyio.sleep_until(begun + sent / rate)
