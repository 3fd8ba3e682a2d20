"""kafka-map-reduce: consume Kafka topics by map-reduce, in plain Python.

A strategy needs only these names, and the writers in `kmr.sinks`. The others are in `kmr.types`,
`kmr.settings`, `kmr.errors` and `kmr.testing`. Each name is imported when it is first used: a process that
only reads Kafka, such as a task of Spark, does not load the worker.
"""

from typing import TYPE_CHECKING

from ._lazy import lazy_exports

if TYPE_CHECKING:
    from .branches.branches import OTHER as OTHER
    from .branches.branches import per_name as per_name
    from .delivery.error_limit import ErrorLimit as ErrorLimit
    from .lookups.lookup import Lookup as Lookup
    from .lookups.table import LookupTable as LookupTable
    from .mapping.calls import Retries as Retries
    from .mapping.functions import map_batch as map_batch
    from .mapping.functions import map_record as map_record
    from .memory.distinct import Distinct as Distinct
    from .memory.window import Window as Window
    from .peeking import read as read
    from .record import Record as Record
    from .reducers.aggregate import Aggregate as Aggregate
    from .reducers.collect import Batcher as Batcher
    from .reducers.collect import Collect as Collect
    from .running import run as run
    from .strategy import Strategy as Strategy
    from .strategy import TopicMap as TopicMap
    from .values.avro.avro_format import Avro as Avro
    from .values.debezium.change import Change as Change
    from .values.debezium.debezium import Debezium as Debezium
    from .values.json.json_format import Json as Json
    from .values.plain import Bytes as Bytes
    from .values.plain import MessagePack as MessagePack
    from .values.plain import Text as Text
    from .values.protobuf.protobuf_format import Protobuf as Protobuf
    from .values.registry.registry import Registry as Registry

__getattr__, __dir__ = lazy_exports(__name__)
