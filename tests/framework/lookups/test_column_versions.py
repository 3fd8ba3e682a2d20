"""Sorted versions, and what those of columns keep in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kmr.lookups.column_versions import ColumnVersions, SortedVersions

EMPTY = pa.RecordBatch.from_pydict({"name": pa.array([], pa.string())})


def test_versions_are_found_by_key_and_time() -> None:
    stamps = np.array([[5, 0, 0], [3, 1, 0], [5, 2, 0], [4, 3, 0]]).T
    found = SortedVersions.of(["a", "a", "a", "b"], stamps, np.array([10, 11, 12, 13]))
    numbers = found.find(["a", "a", "a", "b", "b", "c"], np.array([2, 3, 5, 3, 9, 9]))
    assert [int(found.places[n]) if n >= 0 else None for n in numbers] == [
        *(None, 11, 12, None, 13, None)
    ]
    none = SortedVersions.of([], np.empty((3, 0), np.int64), np.empty(0, np.int64))
    assert none.find(["a"], np.array([1])).tolist() == [-1]


def test_deletes_and_versions_that_no_lookup_finds_leave_the_memory() -> None:
    known = ColumnVersions(keep=1e-5)
    known.is_live = True
    for number in range(50):
        known.put(number % 7, number, (number, number, 0))
    for key in range(7):
        known.drop(key, (50 + key, 50 + key, 0))
    known.put(9, 50, (100, 99, 0))
    before = known.nbytes
    overlay = pa.RecordBatch.from_pydict({"name": [f"n{n}" for n in range(51)]})
    assert known.compact(EMPTY, overlay).column("name").to_pylist() == ["n50"]
    assert (len(known), known.nbytes < before / 20, known.index(1).since) == (1, True, 90)
    places = known.index(1).places([0, 9, 9], np.array([90, 99, 100]))
    assert places.tolist() == [-1, -1, 0]


def test_a_delete_hides_older_versions_that_come_after_it_from_another_partition() -> None:
    """While the table is loaded, and later where the delete is newer than the horizon."""
    known = ColumnVersions(keep=1e-5)
    known.drop("a", (50, 0, 0))
    known.put("b", 0, (100, 1, 0))
    base = known.compact(EMPTY, pa.RecordBatch.from_pydict({"name": ["new"]}))
    known.put("a", 0, (40, 0, 1))
    assert known.index(1).places(["a"], np.array([100])).tolist() == [-1]
    known.is_live = True
    known.drop("c", (95, 2, 0))
    rows = known.compact(base.to_batches()[0], pa.RecordBatch.from_pydict({"name": ["old"]}))
    known.put("c", 0, (92, 1, 1))
    places = known.index(len(rows)).places(["c", "c"], np.array([92, 100]))
    assert places.tolist() == [len(rows), -1]


def test_of_versions_of_one_time_the_later_offset_wins_also_where_it_was_read_before() -> None:
    known = ColumnVersions(keep=1.0)
    for row, (key, offset, partition) in enumerate([("a", 5, 0), ("b", 5, 1)]):
        known.put(key, row, (70, offset, partition))
    base = known.compact(EMPTY, pa.RecordBatch.from_pydict({"name": ["a", "b"]}))
    assert ("a" in known, "c" in known) == (True, False)
    known.put("a", 0, (70, 3, 1))
    known.put("b", 1, (70, 5, 0))
    places = known.index(len(base)).places(["a", "b"], np.array([70, 70]))
    assert places.tolist() == [0, 1]
