"""Small files become large ones: the same rows, through crashes at every step."""

from __future__ import annotations

import copy
import os
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kmr.errors import SinkError
from kmr.record import Range, Rows
from kmr.reducers.reducer import Context
from kmr.sinks.parquet.compact import compact_path
from kmr.sinks.parquet.files import Directory
from kmr.sinks.parquet.writer import ParquetWriter

from ...flushes import Flushed, outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EVERYTHING: dict[str, Any] = {"min_age": 0.0, "target_bytes": 1 << 30}


async def write(path: Path, flushes: int, *, size: int = 3, **options: Any) -> None:
    """Write flushes of two partitions with `size` offsets each; only the later ones have all columns."""
    writer = copy.deepcopy(ParquetWriter(path, **options))
    await writer.open(Context("g", "reduce-1"))
    for number in range(flushes):
        for partition in (0, 1):
            offsets = list(range(number * size, number * size + size))
            columns: dict[str, Any] = {
                "partition": [partition] * size,
                "offset": offsets,
                "carrier": [("AA", "UA")[offset % 2] for offset in offsets],
            }
            if number > 1:
                columns["delay"] = [1.5] * size
            writer.add(
                Rows(pa.table(columns), (Range("t", partition, offsets[0], offsets[-1]),), None)
            )
        assert await outcome(writer) == Flushed()
        writer.reset()
    await writer.close()


def visible(path: Path) -> list[Path]:
    return [file for file in path.rglob("*.parquet") if not file.name.startswith("_")]


def names_in(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def rows_in(path: Path) -> Counter[tuple[Any, ...]]:
    """Return the rows of the visible files."""
    return Counter(
        (row["partition"], row["offset"], row.get("carrier"), row.get("delay"))
        for file in visible(path)
        for row in pq.read_table(file, partitioning=None).to_pylist()
    )


async def test_neighbours_become_one_file_except_the_newest_range(tmp_path: Path) -> None:
    await write(tmp_path, 5)
    before = rows_in(tmp_path)
    done = compact_path(str(tmp_path), **EVERYTHING)
    assert (done.files_before, done.files_after) == (10, 4)
    assert names_in(tmp_path) == [
        f"g~t~{partition}~{first:019d}-{last:019d}.parquet"
        for partition in (0, 1)
        for first, last in ((0, 11), (12, 14))
    ]
    assert rows_in(tmp_path) == before
    again = compact_path(str(tmp_path), **EVERYTHING)
    assert (again.files_before, again.files_after) == (4, 4)


async def test_a_range_that_is_written_again_after_compaction_is_in_the_files_once(
    tmp_path: Path,
) -> None:
    await write(tmp_path, 5)
    compact_path(str(tmp_path), **EVERYTHING)
    before = rows_in(tmp_path)
    writer = copy.deepcopy(ParquetWriter(tmp_path))
    await writer.open(Context("g", "reduce-1"))
    newest = pa.table(
        {"partition": [0] * 3, "offset": [12, 13, 14], "carrier": ["AA", "UA", "AA"]}
    ).append_column("delay", pa.array([1.5] * 3))
    writer.add(Rows(newest, (Range("t", 0, 12, 14),), None))
    assert await outcome(writer) == Flushed()
    assert rows_in(tmp_path) == before


async def test_directories_of_partition_columns_are_compacted_one_by_one(tmp_path: Path) -> None:
    await write(tmp_path, 4, partition_by="carrier")
    before = rows_in(tmp_path)
    done = compact_path(str(tmp_path), **EVERYTHING)
    assert (done.files_before, done.files_after) == (16, 8)
    assert rows_in(tmp_path) == before


@pytest.mark.parametrize("partition_by", [(), ("carrier",)])
async def test_after_a_crash_at_any_step_nothing_is_lost_and_the_next_run_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition_by: tuple[str, ...]
) -> None:
    for step in count():
        path = tmp_path / str(step)
        await write(path, 4, partition_by=partition_by)
        before = rows_in(path)
        with monkeypatch.context() as patched:
            crash_at(patched, step)
            try:
                compact_path(str(path), **EVERYTHING)
            except KeyboardInterrupt:
                crashed = True
            else:
                crashed = False
        assert set(rows_in(path)) == set(before), f"lost after a crash at step {step}"
        compact_path(str(path), **EVERYTHING)
        assert rows_in(path) == before, f"not ended after a crash at step {step}"
        assert not list(path.glob("_kmr-compact-*"))
        if not crashed:
            assert step > 10
            return


def crash_at(patched: pytest.MonkeyPatch, step: int) -> None:
    """Simulate a crash before the given change of the file system; later ones fail too."""
    done = count()

    def limited(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if next(done) >= step:
                raise KeyboardInterrupt
            return method(*arguments)

        return call

    for name in ("rename", "remove", "sync"):
        patched.setattr(Directory, name, limited(getattr(Directory, name)))


async def test_large_young_and_foreign_files_stay_as_they_are(tmp_path: Path) -> None:
    await write(tmp_path, 4)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "part-00000.parquet")
    before = names_in(tmp_path)
    assert compact_path(str(tmp_path)).bytes_rewritten == 0
    assert compact_path(str(tmp_path), min_age=0, target_bytes=10).bytes_rewritten == 0
    dry = compact_path(str(tmp_path), dry_run=True, **EVERYTHING)
    assert (dry.files_before, dry.files_after) == (8, 4)
    assert names_in(tmp_path) == before


async def test_hidden_files_of_a_crash_are_removed_after_a_day(tmp_path: Path) -> None:
    await write(tmp_path, 1)
    old, young = (tmp_path / f"_g~t~0~0-1.parquet.{name}" for name in ("old", "young"))
    for file in (old, young):
        file.touch()
    os.utime(old, (0, 0))
    assert compact_path(str(tmp_path)).abandoned == 1
    assert not old.exists()
    assert young.exists()


def test_a_missing_directory_and_one_with_a_table_log_are_errors(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="there is no directory"):
        compact_path(str(tmp_path / "nowhere"))
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(SinkError, match="a table of Delta"):
        compact_path(str(tmp_path))
