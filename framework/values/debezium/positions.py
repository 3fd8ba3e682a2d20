"""Positions of changes in the source's log, as 24 bytes that compare as the positions do.

PostgreSQL        the last commit before the change, and its lsn, both of its sequence: the log has a change
                  where it was made, and the topic where it was committed
MySQL, MariaDB    number of the binlog file, position. Not the row of the event: the events of a compressed
                  transaction have one position, and each counts its rows from 0
SQL Server        commit_lsn, change_lsn, event_serial_no
MongoDB           time of the operation, ord

Changes of a row with equal positions are ordered by their offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...columns.kinds import mask_where

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from ...columns.kinds import Array

_pc: Any = pc

POSITION: Final = pa.binary(24)
"""The type of positions: three integers of 64 bits, the most significant byte first."""

_FIELDS: Final[list[tuple[str, pa.DataType]]] = [
    ("connector", pa.string()),
    ("ts_ms", pa.int64()),
    ("lsn", pa.int64()),
    ("sequence", pa.string()),
    ("file", pa.string()),
    ("pos", pa.int64()),
    ("commit_lsn", pa.string()),
    ("change_lsn", pa.string()),
    ("event_serial_no", pa.int64()),
    ("ord", pa.int64()),
]
SOURCE: Final = pa.schema(_FIELDS)
"""The fields of `source` that say when and where a change was made."""

_FILE: Final = r"\.(?P<number>[0-9]{1,18})$"
_LSN: Final = r"^(?P<a>[0-9a-fA-F]{8}):(?P<b>[0-9a-fA-F]{8}):(?P<c>[0-9a-fA-F]{4})$"
_COMMIT: Final = r'^\["(?P<commit>[0-9]{1,18})"'
_LAST: Final = r'"(?P<last>[0-9]{1,18})"\]$'
_BY_OFFSET: Final = "set order='offset', which orders changes by the record's offset"


def positions(
    source: Mapping[str, Array], rows: NDArray[np.bool_]
) -> tuple[pa.Array[Any], dict[int, str]]:
    """Return the position of each change, and the reason for each that has none.

    Args:
        source: the columns of `SOURCE`.
        rows: which rows are changes; the others get null.
    """
    count = len(rows)
    words = np.zeros((count, 3), np.uint64)
    has = np.zeros(count, np.bool_)
    failures: dict[int, str] = {}
    connector = source["connector"]
    for name in pc.unique(connector.filter(pa.array(rows))).to_pylist():
        same: Any = connector.is_null() if name is None else _pc.equal(connector, name)
        chosen = rows & mask_where(same)
        reader = _READERS.get(name or _guess(source))
        if reader is None:
            reason = f"field source.connector: changes of {name} have no position known here; {_BY_OFFSET}"
            failures.update(dict.fromkeys(np.flatnonzero(chosen).tolist(), reason))
            continue
        columns, needed = reader(source)
        missing = chosen & ~needed[0]
        if missing.any():
            reason = f"field source.{needed[1]}: null, or no position; {_BY_OFFSET}"
            failures.update(dict.fromkeys(np.flatnonzero(missing).tolist(), reason))
        chosen &= needed[0]
        for at, column in enumerate(columns):
            words[chosen, at] = column[chosen]
        has |= chosen
    return _packed(words, has), failures


def _guess(source: Mapping[str, Array]) -> str | None:
    """Return the connector whose fields there are: a flattened row may have no other sign of it."""
    for name, field in (("postgresql", "lsn"), ("mysql", "file"), ("sqlserver", "commit_lsn")):
        if source[field].null_count < len(source[field]):
            return name
    return None


def _packed(words: NDArray[np.uint64], has: NDArray[np.bool_]) -> pa.Array[Any]:
    data: Any = np.ascontiguousarray(words.astype(">u8"))
    validity = None if has.all() else pa.array(has).buffers()[1]
    made: pa.Array[Any] = pa.Array.from_buffers(POSITION, len(has), [validity, pa.py_buffer(data)])
    return made


Words = tuple[list["NDArray[np.uint64]"], tuple["NDArray[np.bool_]", str]]


def _numbers(column: Array) -> NDArray[np.uint64]:
    numbers: NDArray[np.uint64] = np.asarray(pc.fill_null(column, 0)).astype(np.uint64)
    return numbers


def _there(*columns: Array) -> NDArray[np.bool_]:
    there = np.ones(len(columns[0]), np.bool_)
    for column in columns:
        there &= mask_where(column.is_valid())
        if pa.types.is_integer(column.type):
            there &= np.asarray(pc.fill_null(column, -1)) >= 0
    return there


def _postgresql(source: Mapping[str, Array]) -> Words:
    last, commit = (
        _pc.struct_field(_pc.extract_regex(source["sequence"], pattern), [0]).cast(pa.int64())
        for pattern in (_LAST, _COMMIT)
    )
    lsn = _pc.coalesce(source["lsn"], last)
    # Of the first changes after a snapshot no commit is known.
    return [_numbers(_pc.coalesce(commit, lsn)), _numbers(lsn)], (_there(lsn), "lsn")


def _mysql(source: Mapping[str, Array]) -> Words:
    file = _pc.extract_regex(source["file"], _FILE)
    number = _pc.struct_field(file, [0]).cast(pa.int64())
    return [_numbers(number), _numbers(source["pos"])], (_there(number, source["pos"]), "file")


def _sqlserver(source: Mapping[str, Array]) -> Words:
    commit, committed = _lsn(source["commit_lsn"])
    change, _ = _lsn(source["change_lsn"])
    serial = _numbers(source["event_serial_no"])
    return [
        commit[0] << np.uint64(32) | commit[1],
        commit[2] << np.uint64(48) | change[0] << np.uint64(16) | change[1] >> np.uint64(16),
        (change[1] & np.uint64(0xFFFF)) << np.uint64(48) | change[2] << np.uint64(32) | serial,
    ], (committed, "commit_lsn")


def _lsn(column: Array) -> tuple[list[NDArray[np.uint64]], NDArray[np.bool_]]:
    """Parse `00000027:00000758:0005`: 32, 32 and 16 bits."""
    found = _pc.extract_regex(column, _LSN)
    there = mask_where(found.is_valid())
    parts = []
    for at, digits in enumerate((8, 8, 4)):
        text = _pc.struct_field(found, [at]).fill_null("0" * digits)
        raw = np.frombuffer(text.to_numpy(zero_copy_only=False).astype(f"S{digits}"), np.uint8)
        raw = raw.reshape(len(column), digits) | np.uint8(0x20)  # lower case; digits keep theirs
        values = np.where(raw >= ord("a"), raw - ord("a") + 10, raw - ord("0")).astype(np.uint64)
        weights = np.uint64(16) ** np.arange(digits - 1, -1, -1, dtype=np.uint64)
        parts.append((values * weights).sum(axis=1, dtype=np.uint64))
    return parts, there


def _mongodb(source: Mapping[str, Array]) -> Words:
    columns = [_numbers(source["ts_ms"]), _numbers(source["ord"])]
    return columns, (_there(source["ts_ms"], source["ord"]), "ord")


_READERS: Final[dict[str | None, Callable[[Mapping[str, Array]], Words]]] = {
    "postgresql": _postgresql,
    "mysql": _mysql,
    "mariadb": _mysql,
    "sqlserver": _sqlserver,
    "mongodb": _mongodb,
}
