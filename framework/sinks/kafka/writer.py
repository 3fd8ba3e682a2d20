"""Write rows, or failed records, to a Kafka topic."""

from __future__ import annotations

import copy
import random
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack

import anyio
import numpy as np
import pyarrow as pa
from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors

from ...config.schema import ADDRESSES, Duration, parse_duration
from ...dead_letters.letters import without_contents
from ...errors import BrokerUnavailable, StrategyError
from ...kafka.admin import connect_admin
from ...kafka.connection import stop_producer
from ...kafka.transactions import Transactions
from ...reducers.collect import Collecting, one_table
from ...reducers.finding import Finding
from ...reducers.reducer import ERROR_STAGE, Context, Retry
from ...reducers.sink import (
    NEW,
    Capabilities,
    Refusal,
    RowsRefused,
    Sink,
    Write,
    refusals_among,
)
from ...service.threads import run_in_thread
from ...values.registry.registry import RegistryUnavailable
from ...values.value_format import require_format
from ..answers import SetUp
from ..changes import Changes
from .row_messages import (
    JSON,
    RowMessages,
    column_of,
    message_limit,
    messages_of,
    messages_of_changes,
    partitions_by_key,
)
from .sending import ProducerLost, SendState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ...reducers.reducer import Limits
    from ...values.value_format import ValueFormat

Compression = Literal["gzip", "snappy", "lz4", "zstd"]

_BATCH_BYTES: Final = 512 * 1024
_CLOSE_SECONDS: Final = 5.0
_TRANSACTION_MAX: Final = "transaction.max.timeout.ms"
# Each replacement halves a record batch that is too large; enough to find several such messages.
_MOST_PRODUCERS: Final = 64


class KafkaWriter(Collecting, Sink):
    """Writes rows to a Kafka topic; a flush is complete when the brokers have acknowledged every message.

    At least once: rows are sent again after a crash, unacknowledged ones also after a failed attempt.
    The client's own retries within an attempt double nothing (`idempotence`).

    Exactly once (`delivery="exactly-once"`): the rows of a flush and the offsets of their records are one
    transaction, which the group's coordinator refuses from a worker that has lost its partitions. Consumers
    with `isolation_level=read_committed` see each result once; others also see what was aborted. All writers
    of a worker share one producer. Its transactional id is `transactional_id_prefix` (a setting), the group,
    and the `group_instance_id` or else a random part. Output and input are on the same cluster.

    Example:
        ```python
        from kmr.sinks import KafkaWriter

        totals = KafkaWriter("totals", key="carrier", value="json", delivery="exactly-once")
        ```

    Args:
        topic: the topic to write to.
        key: the column with the keys; the key determines the partition, as in the Java client. Without
            a key the messages of a flush go to one partition, chosen by chance.
        value: the column with the values, or `json` for the whole row as a JSON object. Text is sent
            as UTF-8, numbers as text. A format that can be written, such as `Avro(registry=URL)`, encodes the
            whole row; those with a registry register its schema as `TOPIC-value`.
        headers: for each header, the column with its values; a null leaves the header out, a list has one
            header for each item (a null item is a header without a value). Or the name of the column with all
            headers: lists of `key` and `value`, as `Record.headers` and a batch's column `headers` are.
        timestamp: the column with the messages' times; without it, the time of sending.
        partition: a partition, or the column with the partitions; overrides the key.
        acks: `all` waits for every in-sync replica, 1 for the leader only.
        idempotence: let the brokers drop messages that the client sends twice; needs `acks="all"`.
        compression: of record batches.
        max_message_bytes: messages whose key, value and headers are larger go to `reduce_err`; so do
            those above the topic's own limit.
        attempt_timeout: seconds to wait for acknowledgements until an attempt has failed and is repeated.
        open_timeout: seconds to wait for the topic at start.
        bootstrap_servers: the brokers to write to; by default the worker's own, with the same security
            settings.
        changes: the rows are changes, with a column `op` (docs/changes.md): a row becomes a record with its
            key, a deleted one a tombstone. `key` is one column, or a list of columns, which are sent as a
            JSON object; `value` is `json` or a format.
        delivery: `at-least-once`, or `exactly-once` by transactions: not on Spark, not as `reduce_err`.
        transaction_timeout: seconds after which the brokers abort the transaction of a worker that died in
            it: until then, readers with `read_committed` wait, and so may the next owner of its partitions.
            Below `session_timeout`, and below the brokers' `transaction.max.timeout.ms`.
        limits: the limits and policies of `Reducer`.

    Raises:
        StrategyError: arguments that do not fit together; from `open`: there is no such topic.
        SinkError: from `flush`: the brokers refuse permanently, such as for missing permissions.
    """

    def __init__(
        self,
        topic: str,
        *,
        key: str | Sequence[str] | None = None,
        value: str | ValueFormat = JSON,
        headers: Mapping[str, str] | str | None = None,
        timestamp: str | None = None,
        partition: int | str | None = None,
        acks: Literal["all", 1] = "all",
        idempotence: bool | None = None,
        compression: Compression | None = None,
        max_message_bytes: int = 1024 * 1024,
        attempt_timeout: Duration = 15.0,
        open_timeout: Duration = 15.0,
        bootstrap_servers: str | None = None,
        changes: bool = False,
        delivery: Literal["at-least-once", "exactly-once"] = "at-least-once",
        transaction_timeout: Duration = 15.0,
        **limits: Unpack[Limits],
    ) -> None:
        super().__init__(**limits)
        name = type(self).__name__
        if not re.fullmatch(r"[\w.-]{1,249}", topic, re.ASCII):
            raise StrategyError(
                f"{name}: {topic!r} cannot be the name of a topic: 1 to 249 letters, digits, '.', '_' and '-'"
            )
        if idempotence and acks != "all":
            raise StrategyError(f"{name}: idempotence=True needs acks='all'")
        if max_message_bytes <= 0:
            raise StrategyError(f"{name}: max_message_bytes must be above 0")
        if bootstrap_servers is not None and not re.match(ADDRESSES, bootstrap_servers):
            raise StrategyError(
                f"{name}: bootstrap_servers must be host:port, or several separated by commas, not "
                f"{bootstrap_servers!r}"
            )
        if not (changes or key is None or isinstance(key, str)):
            raise StrategyError(f"{name}: key is one column; a list of columns needs changes=True")
        if not isinstance(value, str):
            require_format(f"{name}: value=", value)
        elif changes and value != JSON:
            raise StrategyError(
                f"{name}: changes=True needs value='json' or a format, not a column"
            )
        names = [key] if isinstance(key, str) else key
        self._changes = Changes.of(name, names, changes=True) if changes else None
        self.replaces_by = () if self._changes is None else self._changes.key
        self.topic = topic
        self.key = key
        self.value = value
        self.headers = headers if isinstance(headers, str) else dict(headers or {})
        self.timestamp = timestamp
        self.partition = partition
        self.acks = acks
        self.idempotence = acks == "all" if idempotence is None else idempotence
        self.compression = compression
        self.max_message_bytes = max_message_bytes
        self.attempt_timeout = parse_duration(attempt_timeout, f"{name}: attempt_timeout")
        self.open_timeout = parse_duration(open_timeout, f"{name}: open_timeout")
        self.bootstrap_servers = bootstrap_servers
        self.capabilities = Capabilities(
            delivery=delivery, commits_offsets=delivery == "exactly-once", in_order=changes
        )
        self.transaction_timeout = parse_duration(
            transaction_timeout, f"{name}: transaction_timeout"
        )
        self._client: dict[str, Any] = {}
        self._producer: AIOKafkaProducer | None = None
        self._state: SendState | None = None
        self._refused: Mapping[int, str] = {}
        self._takes_refused = True
        self._set_up = SetUp()
        self._sources: NDArray[np.int64] | None = (
            None  # the row of each message; None: the same number
        )
        self._topic_limit: int | None = None
        self._check_delivery()

    def _check_delivery(self) -> None:
        name = type(self).__name__
        if not self.capabilities.commits_offsets:
            return
        if not self.idempotence:
            raise StrategyError(f"{name}: delivery='exactly-once' needs acks='all' and idempotence")
        if self.bootstrap_servers is not None:
            raise StrategyError(
                f"{name}: delivery='exactly-once' cannot write to other brokers, because a transaction "
                "has the input's offsets too; remove bootstrap_servers"
            )

    def topic_written(self, bootstrap_servers: str) -> str | None:
        """See `Sink.topic_written`: one address in common makes it the same cluster."""
        ours = bootstrap_servers if self.bootstrap_servers is None else self.bootstrap_servers
        common = set(_addresses(ours)) & set(_addresses(bootstrap_servers))
        return self.topic if common else None

    def __deepcopy__(self, memo: object) -> Self:
        # Nothing is open yet, and the configuration never changes: a shallow copy shares no state.
        other = copy.copy(self)
        other.reset()
        return other

    async def open(self, context: Context) -> None:
        self._takes_letters = context.stage == ERROR_STAGE
        self._takes_refused = context.for_sinks.takes_refused
        self._client = self._client_of(context)
        self._topic_limit = await message_limit(self._client, self.topic)
        await self._require_topic(context, await self._connect())
        if not (isinstance(self.value, str) or self.value.has_schema_ids):
            stored = {field.name: field.type for field in self.value.schema}
            context.for_sinks.tell_types(context.stage, stored)
        if self.capabilities.commits_offsets:
            await self.close()  # transactions have a producer of their own

    def _client_of(self, context: Context) -> dict[str, Any]:
        servers = self.bootstrap_servers or context.bootstrap_servers
        return {**context.for_sinks.client, "bootstrap_servers": servers}

    async def _require_topic(self, context: Context, producer: AIOKafkaProducer) -> None:
        try:
            with anyio.fail_after(self.open_timeout):
                await producer.partitions_for(self.topic)
        except (TimeoutError, kafka_errors.UnknownTopicOrPartitionError) as error:
            raise StrategyError(
                f"{context.stage}: there is no topic {self.topic} at "
                f"{self._client['bootstrap_servers']}; create it"
            ) from error
        except kafka_errors.KafkaError as error:
            raise StrategyError(
                f"{context.stage}: cannot write to topic {self.topic}: {type(error).__name__}: {error}"
            ) from error

    async def examine(self, context: Context) -> Sequence[Finding]:
        """See `Sink.examine`: the topic, permissions, and limits of transactions. It creates no topic."""
        client, stage = self._client_of(context), context.stage
        user = client.get("sasl_plain_username") or "the user of this connection"
        async with connect_admin(client) as admin:
            facts = (await admin.topics([self.topic]))[self.topic]
            settings = await admin.broker_settings() or {}
            if facts.is_missing and settings.get("auto.create.topics.enable") == "true":
                text = f"topic {self.topic} does not exist: the brokers will make it, as they like"
                return [Finding("warning", stage, text, "create it with the partitions you want")]
            if (problem := facts.problem("WRITE", user)) is not None:
                return [Finding("problem", stage, *problem)]
            found = [Finding("ok", stage, f"topic {self.topic} may be written to")]
            if self.capabilities.commits_offsets:
                name = context.for_sinks.transactional_id
                if not await admin.may_use_transactional_id(name):
                    found.append(
                        Finding(
                            "problem",
                            stage,
                            f"we may not use the transactional id {name}: the worker fails at its start",
                            f"allow {user} WRITE and DESCRIBE on transactional ids that begin as this one "
                            "(transactional_id_prefix)",
                        )
                    )
                found += self._examine_timeouts(context, settings.get(_TRANSACTION_MAX))
        return found

    def _examine_timeouts(self, context: Context, most_ms: str | None) -> list[Finding]:
        seconds, session = self.transaction_timeout, context.for_sinks.session_timeout
        found = []
        if most_ms is not None and seconds * 1000 > int(most_ms):
            found.append(
                Finding(
                    "problem",
                    context.stage,
                    f"transaction_timeout is {seconds:g} s, and the brokers allow {int(most_ms) / 1000:g} s "
                    f"({_TRANSACTION_MAX}): they refuse the transactional id",
                    "lower transaction_timeout",
                )
            )
        if session is not None and seconds >= session:
            found.append(
                Finding(
                    "warning",
                    context.stage,
                    f"transaction_timeout is {seconds:g} s, and session_timeout {session:g} s: the next "
                    "owner of a dead worker's partitions waits for its open transaction",
                    "set transaction_timeout below session_timeout",
                )
            )
        return found

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await stop_producer(producer, _CLOSE_SECONDS)

    def reset(self) -> None:
        super().reset()
        self._state = None

    def transactions(self, context: Context) -> Transactions:
        client = {**context.for_sinks.client, "bootstrap_servers": context.bootstrap_servers}
        return Transactions(
            client,
            context.group,
            context.for_sinks.transactional_id,
            self.transaction_timeout,
            compression_type=self.compression,
            max_batch_size=_BATCH_BYTES,
        )

    async def flush(self, write: Write = NEW) -> None:
        """Send the rows, in the transaction if there is one.

        Raises:
            RowsRefused: some messages are too large; in a transaction nothing is sent then.
        """
        send = (
            self._send if write.transaction is None else partial(self._send_in, write.transaction)
        )
        try:
            state = await send()
            while state.refused and await self._shorten(state):
                state = await send()
        except (BrokerUnavailable, RegistryUnavailable, kafka_errors.KafkaError) as error:
            reason = f"topic {self.topic}: {type(error).__name__}: {error}"
            raise Retry(reason, may_double=False) from error
        if state.refused:
            raise RowsRefused(self._refusals(state.refused))

    async def _shorten(self, state: SendState) -> bool:
        """Send less of failed records that are too large; return False if that cannot help."""
        is_large = all(
            self._refused.get(row, self._too_large) == self._too_large for row in state.refused
        )
        if not self._takes_letters or not is_large:
            return False
        letters = one_table(self.rows).take(pa.array(state.refused))
        shorter = await run_in_thread(lambda: self.messages(without_contents(letters)))
        return state.send_instead(shorter)

    async def _send(self) -> SendState:
        reason = ""
        for _ in range(_MOST_PRODUCERS):
            producer = self._producer or await self._connect()
            state = self._state or await self._prepare(producer)
            if state.refused and not self._takes_refused:
                return state  # the worker ends; the next one sends all rows of this flush
            try:
                await state.attempt(producer, self.attempt_timeout, idempotent=self.idempotence)
            except ProducerLost as lost:
                reason = f"topic {self.topic}: the producer had to be replaced: {lost}"
                await self.close()
                if lost.may_double:
                    raise Retry(reason) from lost
            else:
                return state
        raise Retry(reason, may_double=False)

    async def _send_in(self, transactions: Transactions) -> SendState:
        """Send in the transaction that the stage has entered, and will commit if nothing is refused."""
        state = self._state or await self._prepare(transactions.producer)
        if not state.refused:
            state.restart()
            producer = await transactions.begin()
            try:
                await state.attempt(producer, self.attempt_timeout, idempotent=True)
            except ProducerLost as lost:
                after = 0.0 if lost.too_large else None
                raise Retry(f"topic {self.topic}: {lost}", after=after, may_double=False) from lost
            except Retry as retry:
                raise Retry(retry.reason, may_double=False) from retry
        return state

    def messages(self, table: pa.Table) -> RowMessages:
        """Make messages of the rows; see `messages_of` for errors."""
        key = self.key if isinstance(self.key, str) else None
        return messages_of(table, key, self.value, self.headers, self.timestamp, self.topic)

    async def _prepare(self, producer: AIOKafkaProducer) -> SendState:
        partitions = sorted(await producer.partitions_for(self.topic))
        self._state = await run_in_thread(self._encode, partitions)
        return self._state

    def _encode(self, partitions: list[int]) -> SendState:
        table = one_table(self.rows)
        if self._changes is None:
            messages = self.messages(table)
        else:
            applied = self._changes.every(table)
            table, self._sources = applied.table, applied.source
            messages = messages_of_changes(
                applied, self._changes.key, self.value, self.headers, self.timestamp, self.topic
            )
        limit = self.max_message_bytes
        if self.compression is None and self._topic_limit is not None:
            limit = min(limit, self._topic_limit)
        refused = dict(messages.refused)
        for at in range(len(messages)):
            if messages.nbytes(at) > limit:
                refused.setdefault(at, self._too_large)
        targets = self._partitions(table, messages, partitions, refused)
        self._set_up.judge(f"topic {self.topic}", len(messages), refused, messages.general)
        self._refused = refused
        return SendState(self.topic, messages, targets, refused=list(refused))

    @property
    def _too_large(self) -> str:
        return f"the message is too large for topic {self.topic}"

    def _partitions(
        self,
        table: pa.Table,
        messages: RowMessages,
        partitions: list[int],
        refused: dict[int, str],
    ) -> NDArray[np.int64]:
        if self.partition is None:
            keyless = random.choice(partitions)  # noqa: S311  to spread them
            return partitions_by_key(messages.keys, partitions, keyless)
        if isinstance(self.partition, int):
            wanted = np.full(len(messages), self.partition, dtype=np.int64)
        else:
            column = column_of(table, self.partition).column(0)
            if not pa.types.is_integer(column.type):
                raise StrategyError(
                    f"KafkaWriter: column {self.partition!r} must hold a partition in every row"
                )
            wanted = np.array(
                [-1 if each is None else each for each in column.to_pylist()], dtype=np.int64
            )
        unknown = np.flatnonzero(~np.isin(wanted, partitions)).tolist()
        for row in unknown:
            refused[row] = (
                f"topic {self.topic} has no partition {wanted[row]}, only {partitions[0]} to "
                f"{partitions[-1]}"
            )
        wanted[unknown] = partitions[0]
        return wanted

    def _refusals(self, refused: list[int]) -> list[Refusal]:
        """Return the rows of refused messages, as parts of the `Rows` that were added."""
        reasons = {row: self._refused.get(row, self._too_large) for row in refused}
        if (sources := self._sources) is not None:
            reasons = {int(sources[row]): reason for row, reason in reasons.items()}
        return refusals_among(self.rows, reasons)

    async def _connect(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **self._client,
            acks=self.acks,
            enable_idempotence=self.idempotence,
            compression_type=self.compression,
            max_batch_size=min(_BATCH_BYTES, self._topic_limit or _BATCH_BYTES),
        )
        try:
            await producer.start()
        except kafka_errors.KafkaError as error:
            await producer.stop()
            raise BrokerUnavailable(
                f"no broker answers at {self._client['bootstrap_servers']}: {error}"
            ) from error
        self._producer = producer
        return producer


def _addresses(bootstrap_servers: str) -> list[str]:
    return [address.strip().lower() for address in bootstrap_servers.split(",")]
