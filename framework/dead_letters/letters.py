"""The letter of a failed record: the record unchanged, with headers that tell origin, reason and history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..delivery.row_letters import MADE_OF, ROW
from ..errors import storable
from ..record import SCHEMA, TopicPartition
from ..reducers.reducer import Context
from ..values.registry.id_headers import schema_id_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

Pair = tuple[str, bytes | None]

TOPIC: Final = "kmr.topic"
PARTITION: Final = "kmr.partition"
OFFSET: Final = "kmr.offset"
TIMESTAMP: Final = "kmr.timestamp"
GENERATION: Final = "kmr.generation"
GROUP: Final = "kmr.group"
STRATEGY: Final = "kmr.strategy"
STAGE: Final = "kmr.stage"
REASON: Final = "kmr.reason"
EXCEPTION: Final = "kmr.exception"
TRACEBACK: Final = "kmr.traceback"
VERSION: Final = "kmr.strategy-version"
SCHEMA_ID: Final = "kmr.schema-id"
ATTEMPT: Final = "kmr.attempt"
REPLAYS: Final = "kmr.replays"
HISTORY: Final = "kmr.history"
NOT_STORED: Final = "kmr.not-stored"

HEADERS: Final[Mapping[str, str]] = {
    TOPIC: "topic of the record",
    PARTITION: "its partition",
    OFFSET: "its offset",
    TIMESTAMP: "its timestamp, milliseconds since 1970",
    SCHEMA_ID: "id of the schema that the value begins with, where the strategy reads such values",
    GENERATION: "generation of the partition's offsets: `kmr offsets reset` begins a new one",
    GROUP: "consumer group",
    STRATEGY: "strategy, `module:attribute`, where it was started by name",
    VERSION: "`Strategy(version=...)`",
    STAGE: "stage that failed: `map`, `reduce-1`, ...",
    REASON: "why, at most 1,000 characters",
    EXCEPTION: "class of the exception, where there was one: `json.decoder.JSONDecodeError`",
    TRACEBACK: "where it was raised, at most 2,000 characters",
    ATTEMPT: "attempts of that stage",
    REPLAYS: "how often the letter was replayed and failed again",
    HISTORY: "JSON: the latest earlier failures, the oldest first",
    ROW: "name of a row that was made of many records: the letter is of that row, as JSON, not of a record",
    MADE_OF: "the records that the row was made of: `hits-0[10..523]`",
    NOT_STORED: "what of the record the topic has no room for: `key of 9 bytes, value of 1,048,000 bytes`",
}
"""The headers of a letter; all values are text."""

CONTROL_HEADER: Final = "kmr.pass"
"""The header of a record that is no letter, but a pass over letters (`kmr.dead_letters.passes`)."""

_ORIGIN: Final = (TOPIC, PARTITION, OFFSET, TIMESTAMP, GENERATION, SCHEMA_ID, NOT_STORED)
_REASON_CHARACTERS: Final = 1000
_TEXTS: Final = (TOPIC, GROUP, STRATEGY, VERSION, STAGE, REASON, EXCEPTION, ROW)
_NUMBERS: Final = (PARTITION, OFFSET, TIMESTAMP, SCHEMA_ID, GENERATION, ATTEMPT, REPLAYS)
_AT_PARTITION, _AT_OFFSET, _WRITTEN = "at partition", "at offset", "written"
_LONGEST_HISTORY: Final = 5
_LARGEST_MILLISECONDS: Final = (2**63 - 1) // 1000  # of a timestamp in microseconds


class EarlierFailure(msgspec.Struct, frozen=True):
    """An earlier failure of a record that was replayed.

    Attributes:
        failed: when its letter was written, in milliseconds since 1970.
    """

    stage: str
    reason: str
    attempt: int
    failed: int


def letter_headers(failed: pa.Table, context: Context | None = None) -> list[list[Pair]]:
    """Return the headers of a letter for each row of `kmr.delivery.failures.FAILED_SCHEMA`.

    A row that is a letter itself, because a replay failed, keeps its origin and gets a longer history.

    Args:
        context: of the reducer that writes them.
    """
    context = context or Context("", "")
    times = failed.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    names = (
        *("topic", "partition", "offset", "headers"),
        *("stage", "reason", "attempt", "exception", "traceback", "value"),
    )
    found = []
    for time, row in zip(times.to_pylist(), failed.select(names).to_pylist(), strict=True):
        at = TopicPartition(row["topic"], row["partition"])
        had: list[Pair] = [(pair["key"], pair["value"]) for pair in row["headers"] or ()]
        old = {name: value for name, value in had if name in HEADERS and value is not None}
        added = {
            TOPIC: at.topic,
            PARTITION: at.partition,
            OFFSET: row["offset"],
            TIMESTAMP: time,
            SCHEMA_ID: schema_id_of(row["value"], had)
            if context.for_sinks.has_schema_ids
            else None,
            GENERATION: context.for_sinks.generations.get(at) or None,
            GROUP: context.group or None,
            STRATEGY: context.strategy or None,
            VERSION: context.strategy_version or None,
            STAGE: row["stage"],
            REASON: row["reason"][:_REASON_CHARACTERS],
            EXCEPTION: row["exception"],
            TRACEBACK: row["traceback"],
            ATTEMPT: row["attempt"],
        }
        if OFFSET in old:
            had = [pair for pair in had if pair[0] not in HEADERS]
            past = EarlierFailure(
                _text(old, STAGE), _text(old, REASON), _number(old, ATTEMPT, 1), time or 0
            )
            history = _history(old)
            added |= {name: _text(old, name) or None for name in _ORIGIN}
            added[REPLAYS] = _number(old, REPLAYS, 0) + 1
            added[HISTORY] = msgspec.json.encode([*history, past][-_LONGEST_HISTORY:]).decode()
        headers = [
            (name, storable(str(value)).encode())
            for name, value in added.items()
            if value is not None
        ]
        found.append([*had, *headers])
    return found


def without_contents(failed: pa.Table) -> pa.Table:
    """Return failed records that are too large for a topic: without key, value and headers.

    A header `NOT_STORED` says what is missing; headers of an earlier letter stay, and texts are cut.
    """
    headers = []
    for key, value, pairs in zip(
        *(failed.column(name).to_pylist() for name in ("key", "value", "headers")), strict=True
    ):
        contents = {"key": key, "value": value}
        lost = [
            f"{name} of {len(raw):,} bytes" for name, raw in contents.items() if raw is not None
        ]
        kept = [pair for pair in pairs or () if pair["key"] in HEADERS]
        if count := len(pairs or ()) - len(kept):
            lost.append(f"{count:,} headers")
        said = [{"key": NOT_STORED, "value": ", ".join(lost).encode()}] if lost else []
        headers.append([*kept, *said])
    changed: dict[str, Any] = {
        name: pa.nulls(len(failed), failed.schema.field(name).type)
        for name in ("key", "value", "traceback")
    }
    changed["headers"] = pa.array(headers, failed.schema.field("headers").type)
    changed["reason"] = pc.utf8_slice_codeunits(failed["reason"], 0, _REASON_CHARACTERS)
    for name, column in changed.items():
        at = failed.schema.get_field_index(name)
        failed = failed.set_column(at, failed.schema.field(at), column)
    return failed


def _number(headers: Mapping[str, bytes], name: str, otherwise: int) -> int:
    """Return the number in a header; `otherwise` if there is none: any producer may set the header."""
    try:
        return int(headers.get(name, otherwise))
    except ValueError:
        return otherwise


def _history(headers: Mapping[str, bytes]) -> list[EarlierFailure]:
    try:
        return msgspec.json.decode(headers.get(HISTORY, b"[]"), type=list[EarlierFailure])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []


def _text(headers: Mapping[str, bytes], name: str) -> str:
    return headers.get(name, b"").decode(errors="replace")


class Letters(NamedTuple):
    """The letters of a topic as columns, a row for each.

    Attributes:
        partition: where the letter is, in the topic of letters.
        offset: there.
        written: its time, in milliseconds since 1970.
        texts: the headers that are text, without their prefix: `topic`, `strategy-version`, `reason`, ...;
            without `traceback` and `history`.
        numbers: the headers that are numbers: `partition`, `schema-id`, `replays`, ...; -1 where the letter
            has none.
    """

    partition: NDArray[np.int64]
    offset: NDArray[np.int64]
    written: NDArray[np.int64]
    texts: Mapping[str, pa.ChunkedArray[Any]]
    numbers: Mapping[str, NDArray[np.int64]]

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def of_rows(self) -> NDArray[np.bool_]:
        """Which letters are of rows that were made of many records."""
        found: NDArray[np.bool_] = self.texts[_short(ROW)].is_valid().to_numpy()
        return found

    @classmethod
    def of(cls, tables: Iterable[pa.Table]) -> Self:
        """Join the tables of `letters_among`, the oldest letter first."""
        order = [(name, "ascending") for name in (_WRITTEN, _AT_PARTITION, _AT_OFFSET)]
        nothing = letters_among(pa.RecordBatch.from_pylist([], schema=SCHEMA))
        table = pa.concat_tables([nothing, *tables]).sort_by(order)  # type: ignore[arg-type]
        return cls(
            table.column(_AT_PARTITION).to_numpy(),
            table.column(_AT_OFFSET).to_numpy(),
            table.column(_WRITTEN).to_numpy() // 1000,
            {_short(name): table.column(name).cast(pa.string()) for name in _TEXTS},
            {_short(name): table.column(name).to_numpy() for name in _NUMBERS},
        )

    def offsets_by_partition(self, chosen: NDArray[np.bool_]) -> dict[int, NDArray[np.int64]]:
        """Return the offsets of the chosen letters in each partition of their topic, ascending."""
        return {
            int(partition): np.sort(self.offset[chosen & (self.partition == partition)])
            for partition in np.unique(self.partition[chosen])
        }


def letters_among(records: pa.RecordBatch) -> pa.Table:
    """Return place, time and headers of the letters among records; keys and values stay behind."""
    columns = header_columns(records, (*_TEXTS, *_NUMBERS))
    table = pa.table(
        {
            _AT_PARTITION: records.column("partition").cast(pa.int64()),
            _AT_OFFSET: records.column("offset"),
            _WRITTEN: records.column("timestamp").cast(pa.int64()),
        }
        | {name: _texts(columns[name]).dictionary_encode() for name in _TEXTS}
        | {name: _integers(columns[name]) for name in _NUMBERS}
    )
    return table.filter(pc.field(OFFSET) >= pa.scalar(0))


def _short(header: str) -> str:
    return header.removeprefix("kmr.")


def _texts(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return bytes as text. Bytes that are not UTF-8 are escaped: other programs may have written them."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [
                None if each is None else each.decode(errors="backslashreplace")
                for each in column.to_pylist()
            ],
            pa.string(),
        )


def _integers(column: pa.Array[Any]) -> pa.Array[Any]:
    """Parse text; -1 for null and for text that is no number."""
    return _numbers(column).fill_null(-1)


def _numbers(column: pa.Array[Any]) -> pa.Array[Any]:
    """Parse text; null for text that is no number."""
    texts = _texts(column)
    digits = pc.match_substring_regex(texts, r"^-?\d{1,18}$")
    numbers: pa.Array[Any] = pc.if_else(digits, texts, pa.scalar(None, pa.string())).cast(
        pa.int64()
    )
    return numbers


def header_columns(records: pa.RecordBatch, names: Sequence[str]) -> dict[str, pa.Array[Any]]:
    """Return the last value of each header, as a column; null where a record does not have it."""
    headers = records.column("headers")
    rows = pc.list_parent_indices(headers).to_numpy()
    pairs = pc.list_flatten(headers)
    keys, values = pc.struct_field(pairs, "key"), pc.struct_field(pairs, "value")
    found = {}
    for name in names:
        named: Any = pc.equal(keys, pa.scalar(name))
        at = np.flatnonzero(named.to_numpy(zero_copy_only=False))
        source = np.full(len(records), -1, np.int64)
        source[rows[at]] = at
        found[name] = values.take(pa.array(source, mask=source < 0))
    return found


def original_records(letters: pa.RecordBatch) -> pa.RecordBatch:
    """Return the records that letters were written for: their place, time, key, value and headers."""
    columns = header_columns(letters, (TOPIC, PARTITION, OFFSET, TIMESTAMP))
    time = _numbers(columns[TIMESTAMP])
    known: Any = pc.less_equal(pc.abs(time), pa.scalar(_LARGEST_MILLISECONDS))
    made = {
        "key": letters.column("key"),
        "value": letters.column("value"),
        "topic": _texts(columns[TOPIC]),
        "partition": _integers(columns[PARTITION]),
        "offset": _integers(columns[OFFSET]),
        "timestamp": pc.if_else(
            known.fill_null(fill_value=False),
            pc.multiply(time, 1000).cast(pa.timestamp("us", "UTC")),
            letters.column("timestamp").cast(pa.timestamp("us", "UTC")),
        ),
        "timestampType": letters.column("timestampType"),
        "headers": _without_ours(letters.column("headers")),
    }
    arrays = [made[field.name].cast(field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _without_ours(headers: pa.Array[Any]) -> pa.Array[Any]:
    """Remove the headers of letters; null where none is left."""
    pairs = pc.list_flatten(headers)
    ours = pc.is_in(pc.struct_field(pairs, "key"), pa.array(list(HEADERS), pa.string()))
    kept = np.flatnonzero(~ours.to_numpy(zero_copy_only=False))
    rows = pc.list_parent_indices(headers).to_numpy()[kept]
    lengths = np.bincount(rows, minlength=len(headers))
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()), pairs.take(kept), mask=pa.array(lengths == 0)
    )
