"""Make Kafka messages of rows: keys, values, headers, timestamps, and the partition of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np
import pyarrow as pa
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from aiokafka.partitioner import murmur2

from ...columns.casting import Cast
from ...columns.fitted import TargetColumn, fit_columns
from ...columns.fitting import fit, in_lists, raw_or_text
from ...columns.kinds import Lists, is_list, mask_of, plain
from ...columns.texts import json_rows
from ...errors import StrategyError, require_columns
from ...values.debezium.change import CONTROL
from ...values.registry.registry import SchemaRefused
from ...values.value_format import RowsDoNotFit, ValueFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from ...columns.kinds import Array
    from ..changes import Applied

JSON: Final = "json"
"""In place of the name of a column: the whole row as a JSON object."""

Header = tuple[str, bytes | None]
_HEADERS: Final = pa.list_(
    pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
)
_LIMIT: Final = "max.message.bytes"
_LIMIT_TIMEOUT: Final = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class RowMessages:
    """Messages as columns; timestamps in milliseconds since 1970, None for the time of sending.

    Headers are lists, because the client accepts nothing else. `refused` are the rows that have a value that
    cannot be sent, with the reasons; `general` are those of the reasons that are not about a value.
    """

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[list[Header]]
    timestamps: Sequence[int | None]
    refused: Mapping[int, str] = field(default_factory=dict)
    general: AbstractSet[str] = frozenset()

    def __len__(self) -> int:
        return len(self.values)

    def nbytes(self, at: int) -> int:
        """Return the bytes of key, value and headers of one message; the wire format adds a few."""
        headers = sum(len(key) + len(value or b"") for key, value in self.headers[at])
        return len(self.keys[at] or b"") + len(self.values[at] or b"") + headers


def messages_of(
    table: pa.Table,
    key: str | None,
    value: str | ValueFormat,
    headers: Mapping[str, str] | str,
    timestamp: str | None,
    topic: str = "",
) -> RowMessages:
    """Make a message of each row.

    Args:
        key: the column with the keys; None for no keys.
        value: the column with the values, `JSON`, or the format that encodes the row.
        headers: for each header, the column with its values; a null leaves the header out, a list has one
            header for each item. Or the column with all headers: lists of `key` and `value`.
        timestamp: the column with the times.
        topic: where they are sent, for the format.

    Raises:
        StrategyError: there is no such column, or its type cannot be sent.
        RegistryError: the format's registry does not answer.
    """
    none: list[None] = [None] * table.num_rows
    refused: dict[int, str] = {}
    general: set[str] = set()
    values = _values(table, value, topic, refused, general)
    return RowMessages(
        keys=none if key is None else _bytes(table, key, refused),
        values=values,
        headers=_headers(table, headers, refused),
        timestamps=none if timestamp is None else _milliseconds(table, timestamp, refused),
        refused=refused,
        general=general,
    )


def messages_of_changes(
    applied: Applied,
    key: Sequence[str],
    value: str | ValueFormat,
    headers: Mapping[str, str] | str,
    timestamp: str | None,
    topic: str = "",
) -> RowMessages:
    """Make a message of each change: a deleted row is a tombstone. Otherwise as `messages_of`.

    Args:
        applied: as `Changes.every` returns it.
        key: the columns of the key; several are sent as a JSON object.
    """
    table, refused = applied.table, dict(applied.refused)
    rows = table.drop_columns([name for name in CONTROL if name in table.column_names])
    sent = ~applied.deleted
    sent[list(refused)] = False
    bad: dict[int, str] = {}
    general: set[str] = set()
    values = np.full(table.num_rows, None, dtype=object)
    values[sent] = list(_values(rows.filter(pa.array(sent)), value, topic, bad, general))
    numbers = np.flatnonzero(sent)
    refused.update({int(numbers[row]): reason for row, reason in bad.items()})
    if len(key) == 1:
        keys: Sequence[bytes | None] = _bytes(table, key[0], refused)
    else:
        objects = json_rows(table.select(list(key)))
        refused.update(objects.refused)
        keys = objects.objects
    return RowMessages(
        keys=keys,
        values=values.tolist(),
        headers=_headers(table, headers, refused),
        timestamps=[None] * table.num_rows
        if timestamp is None
        else _milliseconds(table, timestamp, refused),
        refused=refused,
        general=general,
    )


def _values(
    table: pa.Table,
    value: str | ValueFormat,
    topic: str,
    refused: dict[int, str],
    general: set[str],
) -> Sequence[bytes | None]:
    if isinstance(value, ValueFormat):
        return _encoded(value, table, topic, refused, general)
    if value != JSON:
        return _bytes(table, value, refused)
    rows = json_rows(table)
    refused.update(rows.refused)
    return rows.objects


def _encoded(
    value: ValueFormat, table: pa.Table, topic: str, refused: dict[int, str], general: set[str]
) -> Sequence[bytes | None]:
    """Encode rows; those that do not fit have an empty value."""
    values = np.full(table.num_rows, None, dtype=object)
    left, rows = np.arange(table.num_rows), table
    while len(left):
        try:
            values[left] = value.encode(rows, topic).to_pylist()
        except RowsDoNotFit as error:  # of one kind: others may follow
            refused.update((int(left[row]), why) for row, why in error.failures.items())
            general |= error.general
            fits = ~mask_of(list(error.failures), len(left))
            left, rows = left[fits], rows.filter(pa.array(fits))
        except SchemaRefused as error:
            refused.update(dict.fromkeys(left.tolist(), str(error)))
            general.add(str(error))
            break
        else:
            break
    return values.tolist()


def partitions_by_key(
    keys: Sequence[bytes | None], partitions: Sequence[int], keyless: int
) -> NDArray[np.int64]:
    """Return the partition of each message: by its key, as in the Java client; `keyless` without one.

    Hashes each distinct key once.
    """
    column: pa.DictionaryArray[Any, Any] = pa.array(keys, pa.binary()).dictionary_encode()
    count = len(partitions)
    of_key = np.array(
        [partitions[(murmur2(key) & 0x7FFFFFFF) % count] for key in column.dictionary.to_pylist()]
        or [keyless],
        dtype=np.int64,
    )
    indices = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    return np.where(missing, keyless, of_key[indices])


async def message_limit(client: Mapping[str, Any], topic: str) -> int | None:
    """Ask for the most bytes of a record batch in `topic`; None when the brokers do not answer that.

    Not every user may ask, and a topic that does not exist yet has no settings.

    Args:
        client: keyword arguments of aiokafka's clients.
    """
    admin = AIOKafkaAdminClient(**client)
    try:
        with anyio.move_on_after(_LIMIT_TIMEOUT):
            await admin.start()
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, {_LIMIT: None})
            (response,) = await admin.describe_configs([resource])
            for _, _, _, _, entries in response.resources:
                for name, value, *_ in entries:
                    if name == _LIMIT and value is not None:
                        return int(value)
    except KafkaError:
        return None
    finally:
        await admin.close()
    return None


def column_of(table: pa.Table, name: str) -> pa.Table:
    """Return a table with one column. Raises StrategyError, with the existing ones, if it is missing."""
    require_columns("KafkaWriter", [name], table.column_names)
    return table.select([name])


def _bytes(table: pa.Table, name: str, refused: dict[int, str]) -> list[bytes | None]:
    fitted = fit_columns(column_of(table, name), [TargetColumn(name, "bytes", raw_or_text)])
    refused.update(fitted.refused)
    column: Any = fitted.table.column(0)
    return column.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]


def _headers(
    table: pa.Table, headers: Mapping[str, str] | str, refused: dict[int, str]
) -> Sequence[list[Header]]:
    if isinstance(headers, str):
        target = TargetColumn(headers, "headers", partial(fit, to=_HEADERS))
        fitted = fit_columns(column_of(table, headers), [target])
        refused.update(fitted.refused)
        return header_lists(fitted.table.column(0))
    if not headers:
        return [[]] * table.num_rows
    columns = [_header_values(table, column, refused) for column in headers.values()]
    return [
        [
            (name, value)
            for name, values in zip(headers, row, strict=True)
            for value in (values if isinstance(values, list) else [values])
            if value is not None or isinstance(values, list)
        ]
        for row in zip(*columns, strict=True)
    ]


def _header_values(
    table: pa.Table, name: str, refused: dict[int, str]
) -> Sequence[bytes | list[bytes | None] | None]:
    if not is_list(column_of(table, name).column(0).type):
        return _bytes(table, name, refused)
    fitted = fit_columns(column_of(table, name), [TargetColumn(name, "headers", _in_list)])
    refused.update(fitted.refused)
    column: Any = fitted.table.column(0)
    return column.cast(pa.list_(pa.large_binary())).to_pylist()  # type: ignore[no-any-return]


def _in_list(array: Array) -> Cast:
    if pa.types.is_null(array.type):
        return Cast(array)
    lists = Lists(plain(array))
    items = in_lists(lists, raw_or_text(lists.items))
    return items._replace(array=lists.with_items(items.array))


def header_lists(column: Any) -> list[list[Header]]:
    """Return the headers of each message, of a column as `kmr.record.SCHEMA` has it."""
    return [[(pair["key"], pair["value"]) for pair in pairs or ()] for pairs in column.to_pylist()]


def _milliseconds(table: pa.Table, name: str, refused: dict[int, str]) -> list[int | None]:
    array = column_of(table, name).column(0)
    if not (pa.types.is_timestamp(array.type) or pa.types.is_integer(array.type)):
        raise StrategyError(
            f"KafkaWriter: column {name!r} of type {array.type} is not a time: use a timestamp, or "
            "milliseconds as integers"
        )
    to = pa.timestamp("ms") if pa.types.is_timestamp(array.type) else pa.int64()
    target = TargetColumn(name, "milliseconds", partial(fit, to=to))
    fitted = fit_columns(column_of(table, name), [target])
    refused.update(fitted.refused)
    column: Any = fitted.table.column(0)
    return column.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
