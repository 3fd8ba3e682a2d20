"""The records of a trial: lines of a file, or values made up for the strategy's formats."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
import msgspec
import numpy as np
import pyarrow as pa

from ..errors import KmrError, SettingsError, StrategyError
from ..mapping.executor import Executor
from ..record import SCHEMA, Batch, Record, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ..mapping.results import MapResult
    from ..strategy import Strategy

_COUNT: Final = 256
_BROKEN_EVERY: Final = 16
_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
_EPOCH_US: Final = 1_767_225_600_000_000
_NO_CLOCK: Final = -1
_WORDS: Final = ("ada", "bob", "eve", "GET", "/", "ok", "", "ünïcode", "a longer text with words")

Values: TypeAlias = "Sequence[bytes | None]"


@dataclass(frozen=True, slots=True)
class MapCounts:
    """What the map makes of some records."""

    records: int
    rows: int
    filtered: int
    failed: int

    def __str__(self) -> str:
        return (
            f"{self.records:,} records become {self.rows:,} rows; {self.filtered:,} filtered, "
            f"{self.failed:,} failed"
        )


def read_lines(path: Path, flag: str = "--records") -> list[bytes]:
    """Read the file of a flag, with the value of one record on each line.

    Raises:
        SettingsError: the file cannot be read, or is empty.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise SettingsError(f"{flag} {path}: {error.strerror}") from error
    if not lines:
        raise SettingsError(f"{flag} {path}: the file is empty; one record on each line")
    return lines


def record_of(
    value: bytes | str | Mapping[str, Any] | None, at: TopicPartition, offset: int
) -> Record:
    """Return a record with a value: text is encoded as UTF-8, a mapping as JSON."""
    if isinstance(value, str):
        value = value.encode()
    elif value is not None and not isinstance(value, bytes):
        value = msgspec.json.encode(value)
    return Record(*at, offset, None, value, _EPOCH_US, _NO_CLOCK)


def columns_of_records(records: Sequence[Record]) -> pa.RecordBatch:
    """Return records of one partition as the columns of a batch."""
    columns: dict[str, Any] = {
        "key": [each.key for each in records],
        "value": [each.value for each in records],
        "topic": [each.topic for each in records],
        "partition": [each.partition for each in records],
        "offset": [each.offset for each in records],
        "timestamp": [each.timestamp_us for each in records],
        "timestampType": [each.timestamp_type for each in records],
        "headers": [[header._asdict() for header in each.headers] or None for each in records],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def generate(strategy: Strategy, topic: str, seed: int) -> Values:
    """Make values up that the strategy's format decodes; without a format, JSON objects.

    With `reduce_err`, one value in 16 is broken.

    Raises:
        StrategyError: no values of this format can be made up.
    """
    rng = random.Random(seed)  # noqa: S311  the same every time
    part = strategy.of_topic(topic)
    if part.value is None:
        made: list[bytes | None] = [
            msgspec.json.encode({"id": at, "name": rng.choice(_WORDS), "value": rng.randrange(100)})
            for at in range(_COUNT)
        ]
    else:
        if part.value.has_schema_ids:
            raise StrategyError(
                f"no records can be made up for {part.value}, whose schemas are in a registry: give "
                "some with --records FILE"
            )
        rows = [
            {f.name: _value(f.type, rng, at) for f in part.value.schema} for at in range(_COUNT)
        ]
        try:
            table = pa.Table.from_pylist(rows, schema=part.value.schema)
            made = list(part.value.encode(table, topic).to_pylist())
        except (NotImplementedError, KmrError, pa.ArrowException, TypeError, ValueError) as error:
            raise StrategyError(
                f"no records can be made up for {part.value} ({error}): give some with --records FILE"
            ) from error
    if strategy.reduce_err is not None:
        made[_BROKEN_EVERY // 2 :: _BROKEN_EVERY] = [
            b"\xff broken %d" % at for at in range(_BROKEN_EVERY // 2, _COUNT, _BROKEN_EVERY)
        ]
    return made


def usable(strategy: Strategy, topic: str, values: Values) -> MapCounts:
    """Map the values once; say what becomes of them.

    Raises:
        StrategyError: none becomes a row, or one fails and there is no `reduce_err`.
    """
    at = TopicPartition(topic, 0)
    batch = Batch.of(
        columns_of_records([record_of(value, at, n) for n, value in enumerate(values)])
    )
    ((_, result),) = map_all(strategy, [batch])
    if result.failures and strategy.reduce_err is None:
        failure = result.failures[0]
        raise StrategyError(
            f"the map fails on record {failure.offset} ({failure.reason}), and the strategy has no "
            "reduce_err: a worker would stop there. Set reduce_err=, or give others with --records FILE"
        )
    made = len(np.unique(result.offsets))
    counts = MapCounts(
        records=len(values),
        rows=len(result.offsets),
        filtered=len(values) - made - len(result.failures),
        failed=len(result.failures),
    )
    if not made:
        why = f"; the first fails: {result.failures[0].reason}" if result.failures else ""
        raise StrategyError(
            f"no record of topic {topic} becomes a row ({counts.filtered} are filtered, {counts.failed} "
            f"fail{why}): give records that do with --records FILE"
        )
    return counts


def map_all(strategy: Strategy, batches: Sequence[Batch]) -> list[tuple[Batch, MapResult]]:
    """Apply the maps of a strategy to batches. Call it where no event loop runs."""

    async def run() -> list[tuple[Batch, MapResult]]:
        executor = Executor("inline")
        await executor.open(strategy)
        try:
            done = []
            for batch in batches:
                part = strategy.of_topic(batch.topic_partition.topic)
                done.append((batch, await executor.map(part.map, part.map_spec, batch)))
            return done
        finally:
            await executor.close()

    return anyio.run(run)


def _value(kind: Any, rng: random.Random, at: int) -> Any:
    """Make a value of an Arrow type up; `at` makes most of them differ."""
    for fits, make in _MAKERS:
        if fits(kind):
            return make(kind, rng, at)
    raise StrategyError(f"no value of type {kind} can be made up: give records with --records FILE")


def _integer(kind: Any, rng: random.Random, at: int) -> int:
    most: int = 2 ** (kind.bit_width - (not pa.types.is_unsigned_integer(kind))) - 1
    return min(rng.choice((0, 1, at, rng.randrange(100), rng.randrange(10_000))), most)


def _decimal(kind: Any, rng: random.Random, at: int) -> Decimal:
    most = 10 ** min(kind.precision, 9)
    return Decimal(rng.randrange(most)).scaleb(-max(kind.scale, 0))


def _moment(kind: Any, rng: random.Random, at: int) -> datetime:
    moment = _EPOCH + timedelta(seconds=at)
    return moment if kind.tz is not None else moment.replace(tzinfo=None)


def _list(kind: Any, rng: random.Random, at: int) -> list[Any]:
    return [_value(kind.value_type, rng, at) for _ in range(rng.randrange(4))]


def _struct(kind: Any, rng: random.Random, at: int) -> Mapping[str, Any]:
    return {field.name: _value(field.type, rng, at) for field in kind}


def _map(kind: Any, rng: random.Random, at: int) -> list[tuple[Any, Any]]:
    return [(_value(kind.key_type, rng, at), _value(kind.item_type, rng, at))]


def _text(kind: Any, rng: random.Random, at: int) -> str:
    return f"{rng.choice(_WORDS)}{at}" if rng.random() < 0.5 else rng.choice(_WORDS)


_MAKERS: Final[
    tuple[tuple[Callable[[Any], bool], Callable[[Any, random.Random, int], Any]], ...]
] = (
    (pa.types.is_boolean, lambda kind, rng, at: rng.random() < 0.5),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, lambda kind, rng, at: rng.randrange(100_000) / 4),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_string, _text),
    (pa.types.is_large_string, _text),
    (pa.types.is_fixed_size_binary, lambda kind, rng, at: rng.randbytes(kind.byte_width)),
    (pa.types.is_binary, lambda kind, rng, at: _text(kind, rng, at).encode()),
    (pa.types.is_large_binary, lambda kind, rng, at: _text(kind, rng, at).encode()),
    (pa.types.is_timestamp, _moment),
    (pa.types.is_date, lambda kind, rng, at: date(2026, 1, 1) + timedelta(days=at % 365)),
    (pa.types.is_time, lambda kind, rng, at: time(at % 24, at % 60)),
    (pa.types.is_duration, lambda kind, rng, at: timedelta(seconds=at)),
    (pa.types.is_dictionary, lambda kind, rng, at: _value(kind.value_type, rng, at % 8)),
    (pa.types.is_map, _map),
    (pa.types.is_list, _list),
    (pa.types.is_large_list, _list),
    (pa.types.is_struct, _struct),
    (
        lambda kind: isinstance(kind, pa.ExtensionType | pa.BaseExtensionType),
        lambda kind, rng, at: _value(kind.storage_type, rng, at),
    ),
    (pa.types.is_null, lambda kind, rng, at: None),
)
