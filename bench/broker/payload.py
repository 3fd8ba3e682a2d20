"""Values of one size that compress like typical events, and whole batches of them."""

from __future__ import annotations

import json
import random
import time
from typing import Literal

from aiokafka.record.default_records import DefaultRecordBatchBuilder

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]

_CODECS: dict[str, int] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_POOL = 1_000
_CITIES = ("London", "Paris", "Nairobi", "Osaka", "Lima", "Toronto", "Mumbai", "Oslo")
_KINDS = ("view", "click", "order", "payment", "return", "search")


def values(size: int) -> list[bytes]:
    """A thousand different JSON texts, cut or filled up to `size` bytes each; always the same."""
    chosen = random.Random(size)  # not for secrets
    return [_value(chosen, number, size) for number in range(_POOL)]


def batch(records: int, size: int, codec: Codec = "none") -> bytes:
    """A record batch of format v2 (KIP-98) with so many records, at offset 0."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=_CODECS[codec],
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2 * records * (size + 32) + 1024,
    )
    pool = values(size)
    now = int(time.time() * 1000)  # older ones are deleted by retention while they are measured
    for number in range(records):
        value = pool[number % len(pool)]
        if builder.append(number, now, None, value, []) is None:
            raise ValueError(f"{records} records of {size} bytes do not fit into a batch")
    return bytes(builder.build())


def _value(chosen: random.Random, number: int, size: int) -> bytes:
    text = bytearray()
    while len(text) < size:
        event = {
            "id": chosen.getrandbits(40) + number,
            "kind": chosen.choice(_KINDS),
            "city": chosen.choice(_CITIES),
            "amount": round(chosen.random() * 1_000, 2),
            "session": f"{chosen.getrandbits(64):016x}",
        }
        text += json.dumps(event, separators=(",", ":")).encode()
    return bytes(text[:size])
