"""Avro values with a schema registry: read, converted, and written to another topic as Avro."""

import os

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kmr import Avro, Json, Strategy, map_batch
from kmr.sinks import DeadLetterWriter, KafkaWriter

REGISTRY = os.environ.get("REGISTRY_URL", "http://127.0.0.1:8081")


class Reading(msgspec.Struct):
    """What this reader wants. Values may be written with older and newer schemas: Avro resolves them."""

    sensor: str
    celsius: float
    room: str | None = None


@map_batch
def fahrenheit(readings: pa.RecordBatch) -> pa.RecordBatch:
    """Return sensor, room and degrees Fahrenheit."""
    converted = pc.add(pc.multiply(readings.column("celsius"), 1.8), 32)
    return readings.select(["sensor", "room", "kmr_offset"]).append_column("fahrenheit", converted)


strategy = Strategy(
    value=Avro(Reading, registry=REGISTRY),
    map=fahrenheit,
    reduce=[KafkaWriter("readings-us", key="sensor", value=Avro(registry=REGISTRY))],
    reduce_err=DeadLetterWriter("readings-dead"),
)

# A producer for trying it: lines of JSON become Avro in the topic `readings`.
from_json = Strategy(
    value=Json(Reading),
    reduce=[KafkaWriter("readings", key="sensor", value=Avro(registry=REGISTRY))],
    reduce_err=DeadLetterWriter("readings-dead"),
)
