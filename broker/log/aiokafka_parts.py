"""The parts of aiokafka that the log uses: record batches and codecs.

Importing aiokafka would double a broker's start, and only some batches are built or read record by record.
A function that needs it imports this module, never aiokafka itself: aiokafka's modules import each other,
which fails when two threads begin with different ones. The import lock of this module makes one wait.
"""

from aiokafka import codec as codecs
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

__all__ = ["DefaultRecordBatch", "DefaultRecordBatchBuilder", "KafkaError", "codecs"]
