"""Produce 3 to 13: append records to the logs.

Version 3 added transactions (KIP-98), 8 the records to blame for an error (KIP-467), 11 TRANSACTION_ABORTABLE
and 12 that partitions are added to the transaction (KIP-890), 13 topic ids (KIP-516). Responses wait for the
write, and with --fsync always for the sync, of the whole event-loop turn.
Versions 0 to 2 are advertised but refused: they carry older record formats.

Differs from Kafka: nothing.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from functools import partial
from itertools import chain
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from ...authorization.rules import Operation, Resource
from ...coordinators.transaction_state import TransactionError
from ...errors import shortened
from ...log.producers import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    ProducerIdentity,
)
from ...log.records import (
    HEADER_BYTES,
    BatchError,
    BatchTooLarge,
    CorruptBatch,
    InvalidBatch,
    InvalidTimestamp,
    TruncatedBatch,
    UnsupportedFormat,
    parse_header,
    split_batches,
)
from ...log.results import LogFailed
from ...log.validation import TakesLong, validate_batches
from ...protocol.cursor import TooManyElements
from ...protocol.headers import CLIENT_ID_AT, LENGTH
from ...protocol.produce_frames import (
    PartitionResult,
    ResponseTemplate,
    read_produce_request,
    records_after,
    records_length_at,
    write_produce_frame,
    write_produce_response,
)
from ...topics.topic import INTERNAL_TOPICS
from ...turns import in_turns
from ..api import CloseConnection, RawApi, Reply
from ..transactions.transactions import transaction_error_code

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from ...log.records import BatchHeader
    from ...protocol.produce_frames import ProduceFrame, TopicKey
    from ...storage.group_commit import Flush
    from ...topics.topic import Partition, TopicPartition
    from ..api import RequestContext

    Step: TypeAlias = Callable[[], None] | None
    """What to run in a thread before the next step, if anything."""
    Steps: TypeAlias = Iterable[Step]
    Validated: TypeAlias = tuple[memoryview | bytearray, list[BatchHeader]]
    _Answer: TypeAlias = tuple["_Repeated", int, int]
    """The earlier request, the correlation id of the one that repeats it, and where its answer begins."""

KEY = 0
REPEATER = b"repeater"
"""Key of a connection's `Repeater` in `RequestContext.remembered`."""
FIRST_SERVED_VERSION = 3
"""Older versions are advertised because librdkafka before 2.11.1 compresses no records for a broker that does
not advertise them (kio has no messages for them)."""

_FIRST_WITH_TRANSACTION_ABORTABLE = 11
_FIRST_TO_ADD_PARTITIONS = 12
_ACKS = (-1, 0, 1)
_FEW_ELEMENTS = 500  # topics and partitions that are appended to in one turn
_MOST_REPEATED = 200  # for each client and version
_MOST_READERS = 8
_MOST_TOGETHER = 16  # requests that are answered by one reply
_ERRORS: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (TruncatedBatch, ErrorCode.invalid_record),  # before its base class
    (CorruptBatch, ErrorCode.corrupt_message),
    (BatchTooLarge, ErrorCode.message_too_large),
    (UnsupportedFormat, ErrorCode.unsupported_for_message_format),
    (InvalidBatch, ErrorCode.invalid_record),
    (InvalidTimestamp, ErrorCode.invalid_timestamp),
    (OutOfOrderSequence, ErrorCode.out_of_order_sequence_number),
    (InvalidProducerEpoch, ErrorCode.invalid_producer_epoch),
    (InvalidTransactionState, ErrorCode.invalid_txn_state),
    (LogFailed, ErrorCode.kafka_storage_error),
)
_REFUSALS = tuple(kind for kind, _ in _ERRORS)


class _Repeated(NamedTuple):
    """Requests that are equal but for their records: their partition, and what their answers begin with."""

    topic: TopicKey
    partition: Partition
    template: ResponseTemplate


class Repeater:
    """The requests of a connection that repeat an earlier one with other records for the one partition.

    They are not read, and their answers are not written, field by field; those that came together have one
    reply. What may have changed since the earlier request is asked again.
    """

    __slots__ = ("_api", "_context", "_known", "_most_bytes", "_readers", "_version")

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._version = context.api_version
        self._most_bytes = context.services.node.settings.request_max_bytes
        self._api = context.api_key << 16 | context.api_version
        # Each reads the API, the correlation id and the bytes between it and the records' length, which is so
        # many bytes behind the beginning of the request.
        self._readers: dict[int, Callable[[memoryview, int], tuple[int, int, bytes]]] = {}
        self._known: dict[bytes, _Repeated] = {}

    def take(self, data: memoryview, start: int, end: int) -> tuple[Reply, int] | None:
        """Append the records of the requests in `data[start:end]`, up to the first that does not repeat.

        Each begins with its length. Return the reply to all of them, and where they end. None: nothing was
        appended, and the first request has to be read.
        """
        context, services, version = self._context, self._context.services, self._version
        flush, frames, now_ms = None, bytearray(), int(time.time() * 1000)
        answers: list[_Answer] = []
        while end - start > HEADER_BYTES and len(answers) < _MOST_TOGETHER:
            begin = start + LENGTH.size
            stop = begin + LENGTH.unpack_from(data, start)[0]
            if stop > end or stop - begin > self._most_bytes:
                break
            for length, read in self._readers.items():
                at = begin + length
                if stop - at > HEADER_BYTES:
                    api, correlation_id, before = read(data, begin)
                    repeated = self._known.get(before)
                    if repeated is not None and api == self._api:
                        break
            else:
                break
            _, partition, template = repeated
            records, log = records_after(data, at, stop, version), partition.log
            if partition.closed:
                del self._known[before]
                break
            if records is None or (
                services.authorizer is not None
                and not context.allows(Operation.WRITE, Resource.TOPIC, partition.topic)
            ):
                break
            offset, append_time_ms = log.append_plain(records, now_ms), -1
            if offset is None:
                result = _append_at_once(context, partition, records, now_ms)
                if result is None or result.error:
                    break
                offset, append_time_ms = result.base_offset, result.log_append_time_ms
            flush = services.group_commit.add(partition, len(records))
            answers.append((repeated, correlation_id, len(frames)))
            template.append_to(frames, correlation_id, offset, append_time_ms, log.log_start_offset)
            start = stop
        if flush is None:
            return None
        after_flush = partial(_joined, context, flush, frames, answers)
        reply = Reply(
            flush=flush, after_flush=after_flush, requests=len(answers), meter=context.meter
        )
        return reply, start

    def remember(self, body: memoryview, repeated: _Repeated, records_bytes: int) -> None:
        """Remember a request that was read, and may be repeated with other records."""
        header, version = self._context.header, self._version
        at = records_length_at(len(body), records_bytes, version)
        if records_after(body, at, len(body), version) is None:
            return
        before = header + bytes(body[:at])
        if len(self._known) >= _MOST_REPEATED or len(self._readers) >= _MOST_READERS:
            self._known.clear()
            self._readers.clear()
        self._readers[CLIENT_ID_AT + len(before)] = Struct(f">Ii{len(before)}s").unpack_from
        self._known[before] = repeated


def _joined(
    context: RequestContext, flush: Flush, frames: bytearray, answers: Sequence[_Answer]
) -> bytearray:
    """Return the answers, whole frames, after a flush in which partitions may have failed."""
    if not flush.failed:
        return frames
    joined = bytearray()
    ends = (*(at for *_, at in answers[1:]), len(frames))
    for ((topic, partition, _), correlation_id, at), end in zip(answers, ends, strict=True):
        error = flush.failed.get(partition)
        if error is None:
            joined += frames[at:end]
            continue
        result = _failed(partition.index, ErrorCode.kafka_storage_error, str(error))
        _count_error(context, result)
        joined += write_produce_frame(topic, result, context.api_version, correlation_id)
    return joined


def _produce(context: RequestContext, body: memoryview) -> Reply:
    try:
        request = read_produce_request(body, context.api_version, _FEW_ELEMENTS)
    except TooManyElements:
        return Reply(later=_produce_many(context, body), keeps_request=True)
    missing = _missing(context, request)
    if missing:
        return Reply(later=_add_and_produce(context, request, missing), keeps_request=True)
    produce = _Produce(context, request)
    steps = produce.appending()
    for compute in steps:
        if compute is not None:
            rest = chain((compute,), steps)
            return Reply(later=_append_rest(context, produce, rest), keeps_request=True)
    produce.remember(body)
    return produce.answer()


async def _produce_many(context: RequestContext, body: memoryview) -> Reply:
    """Append the records of many partitions in several turns: each turn has its own flush."""
    services, version = context.services, context.api_version
    request = await services.compute(read_produce_request, body, version, services.max_elements)
    return await _add_and_produce(context, request, _missing(context, request))


async def _append_rest(context: RequestContext, produce: _Produce, steps: Steps) -> Reply:
    """Go through the steps, which may take long; respond when the records are written."""
    async for step in in_turns(steps):
        if step is not None:
            await context.services.compute(step)
    if not await produce.written():
        return Reply()
    return Reply(await context.services.compute(produce.encoded))


Missing: TypeAlias = "dict[ProducerIdentity, list[TopicPartition]]"


def _missing(context: RequestContext, request: ProduceFrame) -> Missing:
    """Return the partitions that the request adds to the transaction of a producer."""
    missing: Missing = {}
    transactional_id = request.transactional_id
    if (
        transactional_id is None
        or context.api_version < _FIRST_TO_ADD_PARTITIONS
        or _refusal(context, request) is not None
    ):
        return missing
    services = context.services
    for key, partitions in request.topics:
        topic = _name(context, key)
        if topic is None or topic in INTERNAL_TOPICS or _forbidden(context, key, topic):
            continue
        for index, records in partitions:
            if not records or services.topics.partition(topic, index) is None:
                continue
            try:
                batch = parse_header(records)
            except BatchError:
                continue  # it will be refused
            producer = ProducerIdentity(batch.producer_id, batch.producer_epoch)
            error = services.transactions.verify(transactional_id, producer, (topic, index))
            if batch.is_transactional and error is TransactionError.TRANSACTION_ABORTABLE:
                missing.setdefault(producer, []).append((topic, index))
    return missing


async def _add_and_produce(
    context: RequestContext, request: ProduceFrame, missing: Missing
) -> Reply:
    """Append the records once the partitions are stored as parts of the transaction."""
    produce = _Produce(context, request, await _add(context, request, missing))
    return await _append_rest(context, produce, produce.appending())


async def _add(
    context: RequestContext, request: ProduceFrame, missing: Missing
) -> dict[TopicPartition, TransactionError]:
    """Add partitions to their transaction; return the errors."""
    errors: dict[TopicPartition, TransactionError] = {}
    for producer, partitions in missing.items():
        error = await context.services.transactions.add_partitions(
            request.transactional_id or "", producer, partitions
        )
        if error is not None:
            errors |= dict.fromkeys(partitions, error)
    return errors


class _Produce:
    """One request: exhaust `appending`, then call `answer`, or await `written` if it took several turns."""

    def __init__(
        self,
        context: RequestContext,
        request: ProduceFrame,
        not_added: Mapping[TopicPartition, TransactionError] = MappingProxyType({}),
    ) -> None:
        """`not_added`: why partitions could not be added to the transaction."""
        self._context = context
        self._request = request
        self._not_added = not_added
        self._results: list[tuple[TopicKey, list[PartitionResult]]] = []
        self._appended: list[tuple[Partition, list[PartitionResult], int]] = []
        self._flushes: dict[Flush, None] = {}

    def appending(self) -> Iterator[Step]:
        """Append the records of one partition at each step."""
        context, request = self._context, self._request
        refusal = _refusal(context, request)
        now_ms = int(time.time() * 1000)
        for key, partitions in request.topics:
            results: list[PartitionResult] = []
            self._results.append((key, results))
            topic = _name(context, key)
            topic_refusal = refusal or _forbidden(context, key, topic)
            for index, records in partitions:
                if topic_refusal is not None:
                    result = _failed(index, *topic_refusal)
                elif (
                    topic is None
                    or topic in INTERNAL_TOPICS
                    or (partition := context.services.topics.partition(topic, index)) is None
                ):
                    result = _no_partition(key, topic, index)
                else:
                    result = yield from self._append(partition, topic, records, now_ms)
                    if not result.error:
                        flush = context.services.group_commit.add(partition, len(records or b""))
                        self._flushes[flush] = None
                        self._appended.append((partition, results, len(results)))
                if result.error:
                    _count_error(context, result)
                results.append(result)
                yield None

    def _append(
        self, partition: Partition, topic: str, records: memoryview | None, now_ms: int
    ) -> Generator[Step, None, PartitionResult]:
        context, transactional_id = self._context, self._request.transactional_id
        error = self._not_added.get((topic, partition.index))
        if error is None:
            return (yield from _append(context, transactional_id, partition, records, now_ms))
        return _failed(partition.index, *_outside(context, error, f"{transactional_id!r}"))

    def remember(self, body: memoryview) -> None:
        """Remember the request, whose bytes are `body`, if it may be repeated with other records."""
        request, context = self._request, self._context
        if request.transactional_id is not None or not request.acks or len(self._appended) != 1:
            return
        if [len(partitions) for _, partitions in request.topics] != [1]:
            return
        [(topic, [(_, records)])] = request.topics
        partition, [result], _ = self._appended[0]
        template = ResponseTemplate(topic, result, context.api_version)
        repeater: Repeater | None = context.remembered.get(REPEATER)
        if repeater is None:
            repeater = context.remembered[REPEATER] = Repeater(context)
        repeater.remember(body, _Repeated(topic, partition, template), len(records or b""))

    def answer(self) -> Reply:
        """Return the response, for when the records are written."""
        flush = next(iter(self._flushes), None)
        if not self._request.acks:
            self._close_on_failure()
            if flush is not None:
                flush.then(self._close_on_failed_write)
            return Reply()
        if flush is None:
            return Reply(self.encoded())
        return Reply(flush=flush, after_flush=self._after_flush)

    async def written(self) -> bool:
        """Wait until the records are written; return whether the client wants the response, `encoded`."""
        for flush in self._flushes:
            await flush.wait()
        if not self._request.acks:
            self._close_on_failure()
            self._close_on_failed_write()
            return False
        self._refuse_failed()
        return True

    def encoded(self) -> bytearray:
        """Return the response's bytes."""
        return write_produce_response(self._results, self._context.api_version)

    def _after_flush(self) -> bytearray:
        self._refuse_failed()
        return self.encoded()

    def _refuse_failed(self) -> None:
        failed = self._failed_writes()
        for partition, results, at in self._appended if failed else ():
            if partition in failed:
                code = ErrorCode.kafka_storage_error
                results[at] = _failed(partition.index, code, str(failed[partition]))
                _count_error(self._context, results[at])

    def _failed_writes(self) -> dict[Partition, LogFailed]:
        return {where: error for each in self._flushes for where, error in each.failed.items()}

    def _close_on_failure(self) -> None:
        """With acks=0 a client notices a failure only if its connection is closed."""
        for topic, partitions in self._results:
            for result in partitions:
                if result.error:
                    raise CloseConnection(
                        f"produce with acks = 0 failed: {topic}-{result.partition_index}:"
                        f" {result.message}"
                    )

    def _close_on_failed_write(self) -> None:
        writes = self._failed_writes()
        failed = [each for each, _, _ in self._appended if each in writes]
        if failed:
            code = int(ErrorCode.kafka_storage_error)
            self._context.meter.errors[code] += len(failed)
            reason = f"{failed[0].topic}-{failed[0].index}: {writes[failed[0]]}"
            self._context.close(shortened(f"produce with acks = 0 failed: {reason}"))


def _run(validate: Callable[[], Validated], validation: Future[Validated]) -> None:
    try:
        validation.set_result(validate())
    except BatchError as error:
        validation.set_exception(error)


def _append_at_once(
    context: RequestContext, partition: Partition, records: memoryview, now_ms: int
) -> PartitionResult | None:
    """Append records outside of transactions; None: nothing was appended, because it takes long."""
    try:
        next(_append(context, None, partition, records, now_ms))
    except StopIteration as done:
        result: PartitionResult = done.value
        return result
    return None


def _append(
    context: RequestContext,
    transactional_id: str | None,
    partition: Partition,
    records: memoryview | None,
    now_ms: int,
) -> Generator[Step, None, PartitionResult]:
    if not records:
        return _failed(partition.index, ErrorCode.invalid_record, "there are no records")
    log = partition.log
    try:
        batches = split_batches(records, max_batch_bytes=log.config.max_message_bytes)
        if len(batches) != 1:
            raise InvalidBatch(f"{len(batches)} batches of one partition: a request may have one")
        validate = partial(validate_batches, records, batches, log.config, now_ms=now_ms)
        try:
            data, batches = validate(at_once=True)
        except TakesLong:
            validation: Future[Validated] = Future()
            yield partial(_run, validate, validation)
            data, batches = validation.result()
        refusal = _check_transaction(context, transactional_id, partition, batches[0])
        if refusal is not None:
            return _failed(partition.index, *refusal)
        _check_first(context, partition, batches[0])
        appended = log.append(data, batches, now_ms=now_ms)
    except _REFUSALS as error:
        result = _failed(partition.index, _code(error), str(error))
        blamed = error.records if isinstance(error, BatchError) else ()
        return result._replace(record_errors=blamed) if blamed else result
    return PartitionResult(
        partition.index,
        0,
        appended.first_offset,
        appended.log_append_time_ms,
        appended.log_start_offset,
    )


def _refusal(context: RequestContext, request: ProduceFrame) -> tuple[ErrorCode, str] | None:
    """Return error code and reason if the whole request is refused."""
    version, acks, transactional_id = context.api_version, request.acks, request.transactional_id
    if version < FIRST_SERVED_VERSION:
        return (
            ErrorCode.unsupported_version,
            f"Produce version {version} is not served, use {FIRST_SERVED_VERSION} or newer",
        )
    if acks not in _ACKS:
        return ErrorCode.invalid_required_acks, f"acks = {acks}: must be -1 (all), 0 or 1"
    if transactional_id is not None and not context.allows(
        Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id
    ):
        return (
            ErrorCode.transactional_id_authorization_failed,
            f"{context.principal} may not write as transactional id {transactional_id!r}",
        )
    return None


def _name(context: RequestContext, key: TopicKey) -> str | None:
    """Return a topic's name; None for an id that no topic has."""
    if isinstance(key, str):
        return key
    topic = context.services.topics.by_id(key)
    return None if topic is None else topic.name


def _forbidden(
    context: RequestContext, key: TopicKey, topic: str | None
) -> tuple[ErrorCode, str] | None:
    """Refuse a topic that the client may not write to; the reason names it as the client did."""
    if topic is None or context.allows(Operation.WRITE, Resource.TOPIC, topic):
        return None
    message = f"{context.principal} may not write to {str(key)!r}"
    return ErrorCode.topic_authorization_failed, message


def _check_transaction(
    context: RequestContext, transactional_id: str | None, partition: Partition, batch: BatchHeader
) -> tuple[ErrorCode, str] | None:
    """Refuse transactional records outside the open transaction: they would hang (KIP-890)."""
    if not batch.is_transactional:
        return None
    if not transactional_id:
        return ErrorCode.transactional_id_authorization_failed, "there is no transactional id"
    producer = ProducerIdentity(batch.producer_id, batch.producer_epoch)
    error = context.services.transactions.verify(
        transactional_id, producer, (partition.topic, partition.index)
    )
    if error is None:
        return None
    who = f"{transactional_id!r} as producer {producer.producer_id} epoch {producer.epoch}"
    return _outside(context, error, who)


def _outside(context: RequestContext, error: TransactionError, who: str) -> tuple[ErrorCode, str]:
    """Return error code and reason of records that are in no open transaction."""
    version = context.api_version
    if error is TransactionError.COORDINATOR_NOT_AVAILABLE:
        return ErrorCode.not_enough_replicas, "the transaction could not be stored; try again"
    if error is TransactionError.CONCURRENT_TRANSACTIONS and version < _FIRST_TO_ADD_PARTITIONS:
        # Clients of these versions retry this code without refreshing their metadata.
        return ErrorCode.not_enough_replicas, "the transaction is ending; try again"
    abortable = version >= _FIRST_WITH_TRANSACTION_ABORTABLE
    code = transaction_error_code(error, fenced=False, abortable=abortable)
    return code, f"not part of the open transaction of {who}"


def _check_first(context: RequestContext, partition: Partition, batch: BatchHeader) -> None:
    """Raise OutOfOrderSequence if records are missing before the first ones of a transaction.

    A producer whose epoch rises with each transaction begins with sequence 0 in each partition.
    """
    if (
        batch.is_transactional
        and batch.base_sequence > 0
        and context.api_version >= _FIRST_TO_ADD_PARTITIONS
        and not partition.log.producers.knows(batch.producer_id)
    ):
        raise OutOfOrderSequence(
            f"producer {batch.producer_id}: begins with sequence {batch.base_sequence} instead of 0"
        )


def _no_partition(key: TopicKey, topic: str | None, index: int) -> PartitionResult:
    if topic is None:
        return _failed(index, ErrorCode.unknown_topic_id, f"there is no topic with the id {key}")
    if topic in INTERNAL_TOPICS:
        return _failed(index, ErrorCode.invalid_topic_exception, f"{topic!r} belongs to the broker")
    return _failed(
        index, ErrorCode.unknown_topic_or_partition, f"there is no partition {index} of {topic!r}"
    )


def _failed(index: int, code: ErrorCode, message: str) -> PartitionResult:
    return PartitionResult(index, int(code), message=shortened(message))


def _count_error(context: RequestContext, result: PartitionResult) -> None:
    context.meter.errors[result.error] += 1


def _code(error: Exception) -> ErrorCode:
    return next(code for kind, code in _ERRORS if isinstance(error, kind))


PRODUCE = RawApi("Produce", max_version=13, handler=_produce)
