"""The files of a query's memory: a task begins with the one of its first offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kmr.errors import SettingsError
from kmr.record import TopicPartition
from kmr.spark.engine.memory_files import DIRECTORY, MemoryFiles, Position

if TYPE_CHECKING:
    from pathlib import Path

P0 = TopicPartition("t", 0)
TABLES = {"keys": pa.table({"key": [1, 2]}), "numbers": pa.table({"n": [3]})}


@pytest.fixture
def files(tmp_path: Path) -> MemoryFiles:
    files = MemoryFiles(f"file://{tmp_path}", "rule")
    files.begin()
    return files


def test_what_was_written_for_an_offset_is_read_there(files: MemoryFiles) -> None:
    assert files.read(P0, Position(0)) == {}
    files.write(P0, Position(10), TABLES)
    found = files.read(P0, Position(10))
    assert {name: table.to_pydict() for name, table in found.items()} == {
        name: table.to_pydict() for name, table in TABLES.items()
    }
    assert files.read(P0, Position(0)) == {}, "the micro-batch before may be repeated"


def test_files_of_lower_offsets_are_removed_and_then_missing(files: MemoryFiles) -> None:
    for offset in (0, 10, 20):
        files.write(P0, Position(offset), TABLES)
    files.remove_before(P0, Position(10))
    assert set(files.read(P0, Position(10))) == set(TABLES)
    with pytest.raises(SettingsError, match=r"000\.arrow is missing.*there are files for 10, 20"):
        files.read(P0, Position(0))


def test_the_memory_of_another_rule_is_refused(files: MemoryFiles, tmp_path: Path) -> None:
    files.write(P0, Position(10), TABLES)
    other = MemoryFiles(f"file://{tmp_path}", "other rule")
    with pytest.raises(SettingsError, match=r"another strategy \(rule\), not of this one"):
        other.read(P0, Position(10))


def test_a_host_that_does_not_see_the_directory_is_told_so(tmp_path: Path) -> None:
    elsewhere = MemoryFiles(f"file://{tmp_path}", "rule")
    with pytest.raises(
        SettingsError, match=f"{DIRECTORY}/begun is missing: this host does not see"
    ):
        elsewhere.read(P0, Position(0))


def test_a_time_without_records_follows_the_offset(files: MemoryFiles) -> None:
    idle = [Position(10), Position(10, 5_000_000), Position(10, 20_000_000), Position(11)]
    for position in idle:
        files.write(P0, position, TABLES)
    files.remove_before(P0, idle[2])
    assert set(files.read(P0, idle[2])) == set(TABLES)
    with pytest.raises(SettingsError, match=r"0010\+5000000\.arrow is missing"):
        files.read(P0, idle[1])
