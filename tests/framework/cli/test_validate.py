"""`kmr validate`: a strategy, stage by stage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


def test_a_valid_strategy_is_printed_stage_by_stage(kmr: Callable[..., Any], folder: Path) -> None:
    output = kmr("validate", "flow")
    assert output.code == 0
    assert output.out.splitlines()[:-1] == [
        "flow is valid.",
        "",
        "map         flow.parse",
        "            one call per record, async",
        "            columns: a: int64",
        "reduce-1    Batcher",
        "            flushes at 500,000 rows or 4 s",
        "            when full: flush, on shutdown: flush, on error: retry",
        "reduce-2    Collect",
        "            flushes at 32,768 rows or 64MiB or 4 s",
        "            when full: flush, on shutdown: drop, on error: retry",
        "reduce-err  StreamWriter",
        "            flushes at 1 s",
        "            when full: flush, on shutdown: flush, on error: retry",
        "            at least once: after a crash, failed records may be written there again",
        "            at most 100 records in 60 s, then stop",
        "",
        "delivery    at least once: records that were written but not committed when a worker is killed are",
        "            written again.",
        "",
    ]
    assert output.out.splitlines()[-1].startswith("Pickled: ")


def test_a_window_is_printed_with_when_it_closes(kmr: Callable[..., Any], folder: Path) -> None:
    (folder / "windowed.py").write_text(
        """
from kmr import Strategy, Window, map_batch
from kmr.sinks import StreamWriter
each = Window("1m", time="timestamp", late="drop", lateness="10s", idle="30s", columns={"n": ("*", "count")})
strategy = Strategy(map=map_batch(lambda batch: batch), reduce=[each, StreamWriter("stdout")])
"""
    )
    lines = kmr("validate", "windowed").out.splitlines()
    assert (
        lines[lines.index("reduce-1    Window") + 1] == "            flushes at the end of a window"
    )
    (rule,) = (line for line in lines if line.startswith("window "))
    assert (
        "60s of timestamp, lateness 10s, idle after 30s, late rows: drop; rows are partial" in rule
    )


def test_without_error_sink_the_first_failure_stops_the_worker(
    kmr: Callable[..., Any], folder: Path
) -> None:
    output = kmr("validate", "flow:bare")
    assert "reduce-err  none: the first record that fails stops the worker" in output.out
    assert "at most" not in output.out
    assert "one call per batch, sync" in output.out


def test_validate_prints_the_formats_and_the_columns_of_a_strategy_without_a_map(
    kmr: Callable[..., Any], folder: Path
) -> None:
    assert kmr("validate", "flow:typed").out.splitlines()[2:6] == [
        "map         none",
        "            the columns of the value are the rows",
        "            value: Json(Hit), key: Text",
        "            columns: path: string, status: int64, key: string",
    ]


def test_validate_names_the_tables_of_a_map(
    kmr: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "joining.py").write_text(
        "import msgspec\nfrom kmr import Json, Lookup, Strategy\nfrom kmr.sinks import StreamWriter\n"
        "class Row(msgspec.Struct):\n    id: int\n"
        "def f(row: Row, people) -> Row: return row\n"
        "strategy = Strategy(value=Json(Row), map=f, reduce=StreamWriter('stdout'),\n"
        "    tables={'people': Lookup('persons', key='id', value=Json(Row))})\n"
    )
    monkeypatch.chdir(tmp_path)
    output = kmr("validate", "joining")
    assert "table       people: topic persons, by id" in output.out.splitlines()


def test_validate_prints_json_for_programs(kmr: Callable[..., Any], folder: Path) -> None:
    outline = json.loads(kmr("validate", "flow", "--json").out)
    assert outline["map"] == {
        "function": "flow.parse",
        "per": "record",
        "is_async": True,
        "columns": ["a: int64"],
        "value": None,
        "key": None,
        "options": "",
        "resources": None,
    }
    assert [stage["reducer"] for stage in outline["reduce"]] == ["Batcher", "Collect"]
    assert outline["reduce_err"]["max_age"] == 1.0
    assert outline["delivery"] == outline["err_delivery"] == "at-least-once"


def test_functions_need_no_name(kmr: Callable[..., Any], folder: Path) -> None:
    assert kmr("validate", "flow:nameless").code == 0


def test_a_stage_that_writes_to_an_input_topic_is_refused(
    kmr: Callable[..., Any], folder: Path
) -> None:
    assert kmr("validate", "flow:loop").code == 0
    assert kmr("validate", "flow:loop", "--topic", "others").code == 0
    output = kmr("validate", "flow:loop", "--topic", "others", "--topic", "orders")
    assert output.code == 1
    assert output.err.startswith(
        "kmr: reduce-1: KafkaWriter writes to topic orders, which is an input"
    )
