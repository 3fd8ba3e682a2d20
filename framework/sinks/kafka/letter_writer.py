"""Writers of records as they were: failed ones with the reason, and those that are sent to another topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Unpack

import pyarrow as pa

from ...dead_letters.letters import letter_headers
from ...errors import StrategyError
from ...reducers.reducer import SizeLimits
from .row_messages import RowMessages, header_lists
from .writer import KafkaWriter

if TYPE_CHECKING:
    from ...config.schema import Duration
    from ...reducers.reducer import Context
    from .writer import Compression


class _LetterOptions(SizeLimits, total=False):
    """The options of `KafkaWriter` that `DeadLetterWriter` has too."""

    partition: int | str | None
    acks: Literal["all", 1]
    idempotence: bool | None
    compression: Compression | None
    max_message_bytes: int
    attempt_timeout: float
    open_timeout: float
    bootstrap_servers: str | None


class DeadLetterWriter(KafkaWriter):
    """For `reduce_err`: writes failed records unchanged to a topic, with headers that tell the reason.

    Key, value and headers are those of the record, with the headers of `kmr.dead_letters.letters.HEADERS`
    added; `kmr dlq` lists and replays the letters. A letter whose replay fails is written as a new letter of
    the same record, which remembers up to 5 earlier failures. The topic should accept messages about 10,000
    bytes larger than the largest record: a letter that is too large is written without key, value and headers
    of the record, and cannot be replayed.

    Example:
        ```python
        import pyarrow as pa
        from kmr import Json, Strategy
        from kmr.sinks import DeadLetterWriter, StreamWriter

        strategy = Strategy(
            value=Json(pa.schema({"path": pa.string()})),
            reduce=[StreamWriter("stdout")],
            reduce_err=DeadLetterWriter("hits-dead"),
        )
        ```

    Args:
        topic: the topic to write to.
        max_age: the most seconds until a failed record is written.
        options: those of `KafkaWriter`, without keys, values, headers and timestamps.
    """

    def __init__(
        self, topic: str, *, max_age: Duration | None = 1.0, **options: Unpack[_LetterOptions]
    ) -> None:
        self._context: Context | None = None
        for name in ("key", "value", "headers", "timestamp"):
            if name in options:
                raise StrategyError(
                    f"DeadLetterWriter: {name} is that of the failed record; remove it"
                )
        # Only the topic's own limit applies: there is no further place to divert to.
        options.setdefault("max_message_bytes", 2**31 - 1)
        super().__init__(topic, max_age=max_age, **options)

    async def open(self, context: Context) -> None:
        self._context = context
        await super().open(context)

    def messages(self, table: pa.Table) -> RowMessages:
        return RowMessages(
            keys=table.column("key").to_pylist(),
            values=table.column("value").to_pylist(),
            headers=letter_headers(table, self._context),
            timestamps=[None] * table.num_rows,
        )


class RecordWriter(KafkaWriter):
    """Writes records as they are: rows with the columns of `kmr.record.SCHEMA`."""

    def messages(self, table: pa.Table) -> RowMessages:
        times = table.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False)
        return RowMessages(
            keys=table.column("key").to_pylist(),
            values=table.column("value").to_pylist(),
            headers=header_lists(table.column("headers")),
            timestamps=times.cast(pa.int64()).to_pylist(),
        )
