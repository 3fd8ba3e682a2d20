"""Parts of which Spark refuses values: the rows that they are in are found, and all others are written."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.record import Range, Rows
from kmr.sinks.planning import RangeRows, plan_ranges
from kmr.sinks.spark.bisecting import write_pieces

OVERFLOW = "[CAST_OVERFLOW_IN_TABLE_INSERT] Fail to assign a value. SQLSTATE: 22003"


class Table:
    """Writes whole pieces; one with a bad row raises. A piece that is written again replaces itself."""

    def __init__(self, bad: set[int], words: str = OVERFLOW) -> None:
        self.pieces: dict[str, list[int]] = {}
        self._bad, self._words = bad, words
        self.tries = 0

    def write(self, part: RangeRows, rows: pa.Table) -> dict[int, str]:
        numbers = rows.column("n").to_pylist()
        self.tries += 1
        if self._bad & set(numbers):
            raise RuntimeError(f"Job aborted\n{self._words}\n\tat org.apache.spark")
        self.pieces[part.file_name] = [n for n in numbers if n != 3]
        return {row: "three" for row, n in enumerate(numbers) if n == 3}

    def rows(self) -> list[int]:
        return sorted(n for piece in self.pieces.values() for n in piece)


def part_of(count: int) -> RangeRows:
    offsets = np.arange(count)
    rows = Rows(pa.table({"n": offsets}), (Range("t", 0, 0, count - 1),), offsets)
    return plan_ranges([rows], "g", {})[0]


@given(bad=st.sets(st.integers(0, 40), max_size=9))
def test_each_row_is_written_once_or_refused_with_its_reason_also_the_second_time(
    bad: set[int],
) -> None:
    table, part = Table(bad), part_of(40)
    for _ in range(2):
        refused = write_pieces(part, part.table, table.write)
        assert sorted(refused) == sorted({*bad, 3} & set(range(40)))
        assert {refused[row] for row in bad if row < 40} <= {OVERFLOW.partition(" SQLSTATE")[0]}
        assert table.rows() == [n for n in range(40) if n not in refused]


def test_many_bad_rows_take_a_bounded_number_of_jobs_and_the_reason_says_so() -> None:
    table, part = Table(set(range(0, 4096, 2))), part_of(4096)
    refused = write_pieces(part, part.table, table.write)
    assert table.tries < 300
    assert len(refused) + len(table.rows()) == 4096
    assert "rows that were not tried alone" in refused[4094]


def test_an_error_that_is_not_about_values_is_raised() -> None:
    table, part = Table({1}, "[TASK_WRITE_FAILED] no space. SQLSTATE: 58030"), part_of(4)
    with pytest.raises(RuntimeError, match="no space"):
        write_pieces(part, part.table, table.write)
