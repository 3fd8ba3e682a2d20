"""What the paths and footers of an archive's files say of their records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kmr.archives.files import FilePlace
from kmr.errors import ConsumerError, SettingsError
from kmr.record import TopicPartition
from tests.framework.archives.conftest import records

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("topic=a%2Fb/partition=3/g~t~3~0-9.parquet", FilePlace("a/b", 3)),
        ("topics/t/partition=2/t+2+0000000040.parquet", FilePlace("t", 2, 40)),
        ("data/00000-1.parquet", FilePlace()),
    ],
)
def test_a_path_says_which_records_a_file_has(path: str, place: FilePlace) -> None:
    assert FilePlace.of(path) == place


def test_names_of_confluents_sink_count_the_rows_from_their_offset(write: Any, opened: Any) -> None:
    rows = records(range(10)).select(["value"])
    write("topics/t/partition=1/t+1+0000000000.parquet", rows.slice(0, 4), row_group_size=3)
    write("topics/t/partition=1/t+1+0000000004.parquet", rows.slice(4))
    archive = opened()
    at = TopicPartition("t", 1)
    assert (archive.first(at), archive.end(at, 0)) == (0, 10)
    batch = archive.reader(at).read(2, 10)
    assert batch.records.column("value").to_pylist() == [str(n).encode() for n in range(2, 10)]
    assert batch.records.column("offset").to_pylist() == list(range(2, 10))
    with pytest.raises(SettingsError, match="this needs a topic without gaps"):
        opened(gaps=True)


def test_a_row_group_of_several_partitions_and_topics_is_divided(write: Any, opened: Any) -> None:
    table = records([5, 6, 5, 0]).append_column("partition", [[0, 0, 1, 0]])
    write("f.parquet", table.append_column("topic", [["t", "t", "t", "other"]]))
    archive = opened()
    assert archive.end(TopicPartition("t", 0), 5) == 7
    assert archive.first(TopicPartition("t", 1)) == 5
    assert archive.first(TopicPartition("other", 0)) is None
    batch = archive.reader(TopicPartition("t", 1)).read(5, 6)
    assert batch.records.column("partition").to_pylist() == [1]


def test_what_a_file_lacks_is_named(write: Any, opened: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="has no Parquet files"):
        opened()
    write("partition=0/f.parquet", pa.table({"body": [b""]}))
    with pytest.raises(
        SettingsError, match="no column for the offset, value of records; it has body"
    ):
        opened()
    (tmp_path / "archive" / "partition=0" / "f.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConsumerError, match="cannot be read"):
        opened()
