"""Small archives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kmr.archives.archive import Archive, ArchiveSource
from kmr.archives.columns import ArchiveColumns
from kmr.kafka.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


def records(offsets: Iterable[int]) -> pa.Table:
    """Columns of records, whose values are their offsets as text."""
    offsets = list(offsets)
    return pa.table(
        {
            "offset": pa.array(offsets, pa.int64()),
            "value": pa.array([str(n).encode() for n in offsets], pa.binary()),
            "timestamp": pa.array([n * 1000 for n in offsets], pa.timestamp("us", tz="UTC")),
        }
    )


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, pa.Table], None]:
    """Write a file of the archive in the directory `archive`."""

    def write_file(name: str, table: pa.Table, row_group_size: int | None = None) -> None:
        path = tmp_path / "archive" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=row_group_size)

    return write_file


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Archive]:
    """Open the archive."""

    def open_archive(columns: str = "", *, gaps: bool = False, topics: str = "t") -> Archive:
        parsed = ArchiveColumns.parse(columns)
        subscription = Subscription(tuple(topics.split(",")))
        return Archive.open(
            ArchiveSource(str(tmp_path / "archive"), parsed, subscription, gaps=gaps)
        )

    return open_archive
