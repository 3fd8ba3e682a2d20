"""Rows that become columns part by part are the columns of all rows."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pytest

from kmr.mapping.gathering import GatheredRows
from kmr.mapping.results import from_rows
from kmr.values.schemas import row_type


class Hit(msgspec.Struct):
    path: str
    status: int | None = None


class HitDict(TypedDict):
    path: str
    status: NotRequired[int]


HITS = [Hit(f"/{n}", n) for n in range(9)]
DICTS: list[Any] = [{"path": f"/{n}", "status": n} for n in range(9)]
FIELDS: list[pa.Field[Any]] = [
    pa.field("path", pa.string(), nullable=False),
    pa.field("status", pa.int64()),
]
COLUMNS = pa.schema(FIELDS)
CASES = {
    "objects": (row_type(Hit), HITS),
    "objects and a dict": (row_type(Hit), [*HITS[:4], DICTS[4], *HITS[5:]]),
    "a value that does not fit": (row_type(Hit), [*HITS[:7], Hit("/7", "seven"), HITS[8]]),  # type: ignore[arg-type]
    "typed dicts": (row_type(HitDict), [*DICTS[:5], {"path": "/5"}, *DICTS[6:]]),
    "dicts of a schema": (COLUMNS, [*DICTS[:6], {"status": 6}, *DICTS[7:]]),
    "dicts": (None, DICTS),
    "dicts in another order": (None, [*DICTS[:8], dict(reversed(DICTS[8].items()))]),
    "a key more, and less": (
        None,
        [*DICTS[:5], DICTS[5] | {"ms": 1.5}, {"path": "/6"}, *DICTS[7:]],
    ),
    "no columns": (None, [*DICTS[:5], {}, *DICTS[6:]]),
    "objects without a declaration": (None, [*DICTS[:3], *HITS[3:]]),
    "whole numbers, then others": (None, [{"n": n if n < 4 else n + 0.5} for n in range(9)]),
    "numbers, then more texts": (None, [{"n": n if n < 4 else str(n)} for n in range(9)]),
    "nulls, then numbers": (None, [{"n": None if n < 4 else n} for n in range(9)]),
    "no rows": (row_type(Hit), []),
}


@pytest.mark.parametrize("part", [1, 2, 4, 20])
@pytest.mark.parametrize(("schema", "rows"), CASES.values(), ids=list(CASES))
def test_rows_in_parts_are_the_columns_of_all_rows(schema: Any, rows: list[Any], part: int) -> None:
    numbers = [3 * n // 2 for n in range(len(rows))]
    gathered = GatheredRows(schema, {})
    for start in range(0, len(rows), part):
        gathered.add(rows[start : start + part], numbers[start : start + part])
    mapped, whole = gathered.result([]), from_rows(schema, rows, numbers, [])
    assert mapped.table == whole.table
    assert mapped.offsets.tolist() == whole.offsets.tolist()
    assert mapped.failures == whole.failures
    assert mapped.table is None or mapped.table.column(0).num_chunks == 1
