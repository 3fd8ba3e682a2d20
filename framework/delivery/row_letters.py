"""Letters of rows: of those that a reducer made of many records, and that the sink, or a function, refuses.

No single record could be set aside: each of them is also in rows that are written. So the letter is of the
row. Its value is the row as JSON, and its headers say which records the row was made of.
"""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from ..columns.kinds import whole
from ..columns.texts import json_rows, json_values, python_values
from ..errors import SinkError, storable, traceback_of, type_of
from ..record import PLACED, SCHEMA
from ..service.identity import now_ms
from .failures import FAILED_SCHEMA, RowLetters, texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..record import Range, Rows

ROW: Final = "kmr.row"
"""The header that names a refused row. A letter that has it is of a row, any other is of a record."""

MADE_OF: Final = "kmr.made-of"
"""The header that says which records the row was made of."""


def row_letters(
    rows: Rows,
    reasons: str | Sequence[str],
    stage: str,
    attempt: int,
    error: BaseException | None,
    made_of: Sequence[Range],
) -> RowLetters:
    """Make letters of rows that belong to no single record.

    Args:
        reasons: for all rows, or one for each.
        error: the exception behind the refusal, if there is one.
        made_of: the range that is announced for the rows, so that they have the same letters if it is
            repeated; else those of `rows`.

    Raises:
        SinkError: the rows have no offsets, so nothing says what they were made of.
    """
    count = len(rows)
    if not made_of:
        raise SinkError(
            f"{stage}: refused rows ({reasons}) have no offsets; keep them in Refusal.rows"
        )
    first, values = made_of[0], _values(rows.table)
    each: dict[str, Any] = {
        "value": values,
        "topic": [first.topic] * count,
        "partition": [first.partition] * count,
        "offset": [first.first] * count,
        "timestamp": [now_ms() * 1000] * count,
        "timestampType": [0] * count,
        "headers": [
            [{"key": ROW, "value": name}, {"key": MADE_OF, "value": _shown(made_of)}]
            for name in _names(values)
        ],
        "stage": [stage] * count,
        "attempt": [attempt] * count,
        "exception": [None if error is None else type_of(error)] * count,
    }
    columns = {name: pa.array(each[name], FAILED_SCHEMA.field(name).type) for name in each}
    columns |= {
        "key": pa.nulls(count, SCHEMA.field("key").type),
        "reason": texts([reasons] * count if isinstance(reasons, str) else reasons),
        "traceback": texts([None if error is None else traceback_of(error)] * count),
    }
    table = pa.table({name: columns[name] for name in FAILED_SCHEMA.names})
    return RowLetters(
        table.cast(FAILED_SCHEMA.with_metadata(PLACED)),
        rows.ranges if rows.closes is None else (),
    )


def _values(table: pa.Table) -> list[bytes]:
    """Return rows as JSON objects."""
    made = json_rows(table)
    for row in made.refused:
        columns = zip(table.column_names, table.columns, strict=True)
        pairs = (_pair(name, whole(column.slice(row, 1))) for name, column in columns)
        made.objects[row] = b"{%s}" % b",".join(pairs)
    return made.objects


def _pair(name: str, value: pa.Array[Any]) -> bytes:
    """Return a name and a value as JSON; a value that JSON cannot hold is a text, as Python shows it."""
    (shown,), bad = json_values(value)
    if bad:
        shown = storable(repr(python_values(value)[0]))
    return b"%s:%s" % (msgspec.json.encode(name), msgspec.json.encode(shown))


def _names(values: Iterable[bytes]) -> list[bytes]:
    """Name rows by what they are: a row that is made again, of the same records, has the same name."""
    seen: Counter[bytes] = Counter()
    names = []
    for value in values:
        seen[value] += 1
        again = f"-{seen[value]}" if seen[value] > 1 else ""
        names.append(f"{sha256(value).hexdigest()[:16]}{again}".encode())
    return names


def _shown(ranges: Sequence[Range]) -> bytes:
    """Return the offsets of each partition, from the first to the last one."""
    spans: dict[tuple[str, int], Range] = {}
    for r in ranges:
        known = spans.setdefault(r[:2], r)
        spans[r[:2]] = known._replace(first=min(known.first, r.first), last=max(known.last, r.last))
    return ", ".join(map(str, spans.values())).encode()
