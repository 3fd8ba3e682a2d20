"""Texts for arrays, ranges and composite types of PostgreSQL: made of values, and divided into items.

The server casts such a text by itself, and rounds or cuts the items: 1.005 becomes 1.01 in a
`numeric(5,2)[]`. So each item is checked like a value of a column.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from ...columns.kinds import either

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...columns.kinds import Array, Lists, Mask
    from .types import PostgresColumn

_ARRAY: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^{},"]+)', re.DOTALL)
_DIMENSIONS: Final = re.compile(r"^\s*(\[[^]]*\])+\s*=")
_RANGE: Final = re.compile(r'[\[(]((?:"(?:[^"\\]|\\.|"")*"|\\.|[^"\\\])])*)[\])]', re.DOTALL)
_FIELD: Final = re.compile(r'((?:"(?:[^"\\]|\\.|"")*"|\\.|[^,"\\])*)(,|$)', re.DOTALL)
_QUOTED: Final = re.compile(r'""|\\(.)|"', re.DOTALL)


def array_texts(lists: Lists, items: Array, *, quoted: bool) -> Array:
    """Return the texts of arrays; null for null.

    Args:
        items: their items as texts.
        quoted: False for items that are arrays.
    """
    texts = [
        "NULL" if each is None else _quoted(each) if quoted else each for each in items.to_pylist()
    ]
    begins = [0, *lists.ends.tolist()]
    found = [f"{{{','.join(texts[begin:end])}}}" for begin, end in pairwise(begins)]
    nulls = [False] * len(found) if lists.null is None else lists.null.to_pylist()
    return pa.array(
        [None if null else text for text, null in zip(found, nulls, strict=True)], pa.string()
    )


def row_texts(structs: Array) -> Array:
    """Return the texts of composite values whose fields are texts; null for null."""
    return pa.array(
        [
            None
            if row is None
            else f"({','.join('' if each is None else _quoted(each) for each in row.values())})"
            for row in structs.to_pylist()
        ],
        pa.string(),
    )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Item(NamedTuple):
    """A text inside of a value.

    Attributes:
        at: the position of its type among `PostgresColumn.items`.
    """

    row: int
    at: int
    text: str


def bad_items(
    text: Array, column: PostgresColumn, check: Callable[[Array, PostgresColumn], Mask]
) -> Mask:
    """Mark values with an item that does not fit its type.

    A text that is no value of the type is left to the server, which refuses it.

    Args:
        check: marks the texts that do not fit a column.
    """
    found: dict[int, list[Item]] = {}
    for row, value in enumerate(text.to_pylist()):
        if value is not None:
            for at, item in _SPLIT[column.form](value, len(column.items)):
                found.setdefault(at, []).append(Item(row, at, item))
    bad: Mask = None
    for at, items in found.items():
        marked = check(pa.array([each.text for each in items], pa.string()), column.items[at])
        if marked is not None:
            rows = np.zeros(len(text), np.bool_)
            rows[[each.row for each, is_bad in zip(items, marked, strict=True) if is_bad]] = True
            bad = either(bad, rows)
    return bad


def _of_array(text: str, _count: int) -> Iterator[tuple[int, str]]:
    for match in _ARRAY.finditer(_DIMENSIONS.sub("", text)):
        quoted, bare = match.groups()
        if quoted is not None:
            yield 0, re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        elif (item := bare.strip()) and item.upper() != "NULL":
            yield 0, item


def _of_range(text: str, _count: int) -> Iterator[tuple[int, str]]:
    for match in _RANGE.finditer(text):
        for bound in _fields(match[1]):
            if bound:
                yield 0, bound


def _of_row(text: str, count: int) -> Iterator[tuple[int, str]]:
    for at, field in enumerate(_fields(text.strip()[1:-1])):
        if field and at < count:
            yield at, field


def _fields(text: str) -> Iterator[str]:
    for match in _FIELD.finditer(text):
        yield _QUOTED.sub(_unquoted, match[1])
        if not match[2]:
            return


def _unquoted(match: re.Match[str]) -> str:
    return match[1] or ('"' if match[0] == '""' else "")


_SPLIT: Final[dict[str, Any]] = {"array": _of_array, "range": _of_range, "row": _of_row}
