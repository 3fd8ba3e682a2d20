"""kafka-map-reduce: consume Kafka topics by map-reduce, in plain Python.

A strategy needs only these names, and the writers in `kmr.sinks`. Each name is imported when it is first
used: a process that only reads Kafka, such as a task of Spark, does not load the worker.
"""

from typing import TYPE_CHECKING

from ._lazy import lazy_exports

if TYPE_CHECKING:
    from .delivery.announcement import Announcement as Announcement
    from .errors import BrokerUnavailable as BrokerUnavailable
    from .errors import CommitFenced as CommitFenced
    from .errors import CommitRefused as CommitRefused
    from .errors import ConsumerError as ConsumerError
    from .errors import CorruptRecords as CorruptRecords
    from .errors import DeadlineExceeded as DeadlineExceeded
    from .errors import KmrError as KmrError
    from .errors import OffsetOutOfRange as OffsetOutOfRange
    from .errors import RecordFailed as RecordFailed
    from .errors import SettingsError as SettingsError
    from .errors import SinkError as SinkError
    from .errors import StrategyError as StrategyError
    from .errors import UnexpectedDuplicate as UnexpectedDuplicate
    from .mapping.calls import Retries as Retries
    from .mapping.functions import map_batch as map_batch
    from .mapping.functions import map_record as map_record
    from .record import SCHEMA as SCHEMA
    from .record import Batch as Batch
    from .record import Header as Header
    from .record import Range as Range
    from .record import Record as Record
    from .record import Rows as Rows
    from .record import TopicPartition as TopicPartition
    from .reducers.aggregate import Aggregate as Aggregate
    from .reducers.collect import Batcher as Batcher
    from .reducers.collect import Collect as Collect
    from .reducers.collect import Collecting as Collecting
    from .reducers.collect import one_table as one_table
    from .reducers.finding import Finding as Finding
    from .reducers.reducer import Context as Context
    from .reducers.reducer import Delivery as Delivery
    from .reducers.reducer import Empty as Empty
    from .reducers.reducer import Flushed as Flushed
    from .reducers.reducer import FlushResult as FlushResult
    from .reducers.reducer import Limits as Limits
    from .reducers.reducer import OnError as OnError
    from .reducers.reducer import OnShutdown as OnShutdown
    from .reducers.reducer import Poisoned as Poisoned
    from .reducers.reducer import Policies as Policies
    from .reducers.reducer import Reducer as Reducer
    from .reducers.reducer import Retry as Retry
    from .reducers.reducer import SizeLimits as SizeLimits
    from .reducers.reducer import WhenFull as WhenFull
    from .settings import FetchSettings as FetchSettings
    from .settings import HttpSettings as HttpSettings
    from .settings import LogSettings as LogSettings
    from .settings import SecuritySettings as SecuritySettings
    from .settings import Settings as Settings
    from .strategy import ErrorLimit as ErrorLimit
    from .strategy import OnLimit as OnLimit
    from .strategy import Strategy as Strategy
    from .strategy import TopicMap as TopicMap
    from .values.avro.avro_format import Avro as Avro
    from .values.json.json_format import Json as Json
    from .values.messagepack import MessagePack as MessagePack
    from .values.plain import Bytes as Bytes
    from .values.plain import Text as Text
    from .values.protobuf.protobuf_format import Protobuf as Protobuf
    from .values.registry.registry import Registry as Registry
    from .values.registry.registry import RegistryError as RegistryError
    from .values.value_format import Decoded as Decoded
    from .values.value_format import ValueFormat as ValueFormat
    from .worker import Worker as Worker
    from .worker import run_worker as run_worker

__getattr__, __dir__ = lazy_exports(__name__)
