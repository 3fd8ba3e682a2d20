"""The names of partition directories."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from kmr.sinks.parquet.files import partition_directory


@pytest.mark.parametrize(
    ("value", "directory"),
    [
        ("AA", "carrier=AA"),
        ("a/b=c%", "carrier=a%2Fb%3Dc%25"),
        (None, "carrier=__HIVE_DEFAULT_PARTITION__"),
        (True, "carrier=true"),
        (7, "carrier=7"),
        (date(2026, 1, 2), "carrier=2026-01-02"),
    ],
)
def test_partition_directories_are_named_as_spark_does(value: Any, directory: str) -> None:
    assert partition_directory("carrier", value) == directory
