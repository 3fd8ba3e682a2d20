"""kmr cutover: its flags. What it does is tested in `tests/framework/history` and beside the sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

STRATEGIES = """
import pyarrow as pa
from kmr import Strategy, map_record
from kmr.sinks import ClickHouseWriter, StreamWriter


@map_record(schema=pa.schema([("n", pa.int64())]))
def number(record):
    return {"n": int(record.value)}


into_a_table = Strategy(map=number, reduce=ClickHouseWriter("hits2", create=True))
into_a_stream = Strategy(map=number, reduce=StreamWriter("stdout"))
"""
WHERE = ("--replaces", "hits", "--old-group", "web", "--bootstrap-servers", "127.0.0.1:1")


@pytest.fixture(autouse=True)
def strategies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "versions.py").write_text(STRATEGIES)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("versions:into_a_stream", "--group", "web2", *WHERE), "StreamWriter"),
        (("versions:into_a_table", "--group", "web", *WHERE), "group"),
        (("versions:into_a_table", "--group", "web2", *WHERE), "There is no ClickHouse directory"),
        (("versions:into_a_table", "--group", "web2"), "replaces"),
        (("versions:none", "--group", "web2", *WHERE), "versions"),
    ],
)
def test_what_cannot_be_exchanged_is_explained_in_one_line(
    kmr: Callable[..., Any], flags: tuple[str, ...], reason: str
) -> None:
    refused = kmr("cutover", *flags)
    assert refused.code in (1, 2)
    assert refused.out == ""
    assert reason in refused.err
    assert "Traceback" not in refused.err
