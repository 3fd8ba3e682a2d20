"""How far an archive reaches, and that it returns each record once, in order."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.archives.archive import Archive, ArchiveSource
from kmr.archives.columns import ArchiveColumns
from kmr.errors import OffsetOutOfRange
from kmr.kafka.subscription import Subscription
from kmr.record import Range, TopicPartition
from tests.examples import examples
from tests.framework.archives.conftest import records

if TYPE_CHECKING:
    from kmr.record import Batch

AT = TopicPartition("t", 0)


def offsets(batches: list[Batch]) -> list[int]:
    return [n for batch in batches for n in batch.offsets().tolist()]


def test_archive_and_topic_must_have_every_offset_between_them(write: Any, opened: Any) -> None:
    write("partition=0/a.parquet", records(range(10)))
    write("partition=0/b.parquet", records(range(10, 20)))
    archive = opened()
    assert archive.end(AT, 0) == archive.end(AT, 15) == 20
    for start in (0, 7, 20):
        archive.require_joined(AT, 0, 50, start)
    archive.require_joined(AT, 0, 20, 30)  # the cut is in the archive
    with pytest.raises(OffsetOutOfRange, match=r"t-0: offsets 20 to 24 are neither in the archive"):
        archive.require_joined(AT, 0, 50, 25)
    write("partition=0/c.parquet", records(range(22, 30)))
    with pytest.raises(OffsetOutOfRange, match=r"t-0: offsets 20 to 21 are neither in the archive"):
        opened().require_joined(AT, 0, 50, 25)
    opened(gaps=True).require_joined(AT, 0, 50, 25)
    with pytest.raises(OffsetOutOfRange, match="t-1: offsets 3 to 8 are neither"):
        archive.require_joined(TopicPartition("t", 1), 3, 20, 9)


def test_offsets_that_a_file_lacks_are_a_gap_unless_they_may_be_lacking(
    write: Any, opened: Any
) -> None:
    write("partition=0/a.parquet", records([0, 1, 2, 5, 6, 9]))
    with pytest.raises(OffsetOutOfRange, match=r"lacks the offsets 3 to 4\. .*--archive-gaps"):
        opened().require_joined(AT, 0, 10, 10)
    with pytest.raises(OffsetOutOfRange, match="lacks the offsets 7 to 8"):
        opened().require_joined(AT, 5, 10, 10)
    opened().require_joined(AT, 5, 7, 10)
    with pytest.raises(OffsetOutOfRange, match=r"lacks the offsets 3 to 4\. .*--archive-gaps"):
        opened().reader(AT).read(0, 10)
    archive = opened(gaps=True)
    archive.require_joined(AT, 0, 10, 10)
    (batch,) = archive.batches(Range("t", 0, 1, 8))
    assert (batch.first, batch.last, offsets([batch])) == (1, 8, [1, 2, 5, 6])


@given(
    st.lists(st.sets(st.integers(0, 300)), max_size=4),
    st.lists(st.integers(0, 300), max_size=3),
    st.integers(1, 40),
)
@settings(max_examples=examples(60), deadline=None)
def test_files_that_overlap_in_any_way_return_each_record_once(
    parts: list[set[int]], cuts: list[int], rows: int
) -> None:
    """As those of an Iceberg table by the hour of the timestamp, or after a compaction."""
    rest = set(range(301)).difference(*parts)
    with tempfile.TemporaryDirectory() as folder:
        for number, part in enumerate([*parts, rest]):
            path = Path(folder) / f"{number}.parquet"
            table = records(sorted(part)).append_column("partition", [[0] * len(part)])
            pq.write_table(table, path, row_group_size=rows)
        source = ArchiveSource(folder, ArchiveColumns(), Subscription(("t",)))
        archive = Archive.open(source)
        archive.require_joined(AT, 0, 301, 301)
        edges = [0, *sorted(set(cuts) - {0}), 301]
        for first, end in itertools.pairwise(edges):
            batches = list(archive.batches(Range("t", 0, first, end - 1)))
            assert offsets(batches) == list(range(first, end))
            assert [batch.first for batch in batches[1:]] == [b.last + 1 for b in batches[:-1]]


def test_batches_are_cut_by_their_bytes(
    write: Any, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmr.archives.archive._BYTES", 2_000)
    write("partition=0/a.parquet", records(range(1000)))
    batches = list(opened().batches(Range("t", 0, 0, 999)))
    assert len(batches) > 10
    assert offsets(batches) == list(range(1000))
    assert max(batch.nbytes for batch in batches) <= 2_500
    assert batches[-1].max_timestamp_ms == 999
