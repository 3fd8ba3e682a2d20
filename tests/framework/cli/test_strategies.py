"""Strategies on the command line: finding, checking, drawing them; settings as flags."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from framework.cli.run import run
from framework.cli.strategies import load_strategy
from framework.errors import StrategyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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
        "            at most 100 records in 60 s, then stop",
        "",
        "delivery    at least once: what was written and not yet committed when a worker is killed is",
        "            written again.",
        "",
    ]
    assert output.out.splitlines()[-1].startswith("Pickled: ")


def test_a_strategy_without_error_sink_says_what_that_means(
    kmr: Callable[..., Any], folder: Path
) -> None:
    output = kmr("validate", "flow:bare")
    assert "reduce-err  none: the first record that fails stops the worker" in output.out
    assert "one call per batch, sync" in output.out


def test_validate_prints_json_for_programs(kmr: Callable[..., Any], folder: Path) -> None:
    outline = json.loads(kmr("validate", "flow", "--json").out)
    assert outline["map"] == {
        "function": "flow.parse",
        "per": "record",
        "is_async": True,
        "columns": ["a: int64"],
    }
    assert [stage["reducer"] for stage in outline["reduce"]] == ["Batcher", "Collect"]
    assert outline["reduce_err"]["max_age"] == 1.0
    assert outline["delivery"] == "at-least-once"


def test_what_cannot_be_pickled_is_named(kmr: Callable[..., Any], folder: Path) -> None:
    output = kmr("validate", "flow:unpicklable")
    assert output.code == 1
    assert output.err.startswith("kmr: reduce[0] cannot be pickled")


def test_the_drawing_joins_what_belongs_together(kmr: Callable[..., Any], folder: Path) -> None:
    lines = kmr("graph", "flow").out.splitlines()
    text = "\n".join(lines)
    for name in ("consumer", "map parse", "reduce-1 Batcher", "reduce-2 Collect", "commit"):
        assert f"│ {name} " in text
    (failures,) = [line for line in lines if "failures" in line]
    (acks,) = [line for line in lines if "acks" in line]
    assert failures.startswith("│ map parse")
    assert acks.startswith("│ commit")
    # The line from the map down to the commit stands in one column.
    column = acks.index("┘", acks.index("acks"))
    between = lines[lines.index(failures) + 1 : lines.index(acks)]
    drawn = [
        line[column] for line in between if "reduce-err" not in line and "flush at 1 s" not in line
    ]
    assert drawn == ["▼", "┬", *"│" * (len(drawn) - 2)]
    assert failures[column] == "┐"


def test_without_error_sink_nothing_is_drawn_beside_the_chain(
    kmr: Callable[..., Any], folder: Path
) -> None:
    lines = kmr("graph", "flow:bare").out.splitlines()
    assert "failures" not in "".join(lines)
    assert {len(line) for line in lines if line[0] != " "} == {len(lines[0])}


@pytest.mark.parametrize(
    ("form", "edges"),
    [
        ("mermaid", ["s0 --> s1", "s3 --> s4", "s1 -- failures --> err", "err -- acks --> s4"]),
        ("dot", ["s0 -> s1;", "s3 -> s4;", 's1 -> err [label="failures"];']),
    ],
)
def test_a_strategy_can_be_drawn_by_other_tools(
    kmr: Callable[..., Any], folder: Path, form: str, edges: list[str]
) -> None:
    lines = [line.strip() for line in kmr("graph", "flow", "--format", form).out.splitlines()]
    assert set(edges) <= set(lines)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("flow:stratgy", "module flow has no attribute stratgy; did you mean flow:strategy?"),
        ("flow:parse", "flow:parse is of type function, not a Strategy; did you mean flow:bare?"),
        ("flow.py:bare", "flow.py:bare names a file; name the module instead: flow:bare"),
        ("absent.deeper:x", "there is no module absent, neither in "),
        ("flow.deeper:x", "there is no module flow.deeper, neither in "),
        (
            "lacking",
            (
                "cannot import lacking: No module named 'absent_library' in {folder}/lacking.py, "
                "line 2: import absent_library"
            ),
        ),
        (
            "failing",
            (
                "cannot import failing: ZeroDivisionError: division by zero in {folder}/failing.py, "
                "line 2: return 1 / 0"
            ),
        ),
        (
            "garbled",
            "cannot import garbled: '(' was never closed in {folder}/garbled.py, line 1: f(",
        ),
        (
            "senseless",
            (
                "reduce= is empty: a strategy needs at least one reducer in {folder}/senseless.py, "
                "line 3: strategy = Strategy(map=passed, reduce=[])"
            ),
        ),
    ],
)
def test_what_is_wrong_with_the_module_is_told_with_file_and_line(
    folder: Path, path: str, message: str
) -> None:
    modules = {
        "lacking": "x = 1\nimport absent_library\n",
        "failing": "def half():\n    return 1 / 0\nhalf()\n",
        "garbled": "f(\n",
        "senseless": (
            "from flow import passed\nfrom framework.strategy import Strategy\n"
            "strategy = Strategy(map=passed, reduce=[])\n"
        ),
    }
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    with pytest.raises(StrategyError) as error:
        load_strategy(path)
    assert str(error.value).startswith(message.format(folder=folder))


def test_run_names_every_setting_that_is_missing(kmr: Callable[..., Any], folder: Path) -> None:
    output = kmr("run", "flow")
    assert output.code == 2
    assert output.err.splitlines()[0].startswith("kmr: topics is not set: give --topic")
    assert output.err.splitlines()[1].startswith("group is not set: give --group")


def test_run_without_strategy_says_how_to_name_one(kmr: Callable[..., Any], folder: Path) -> None:
    output = kmr("run", "--topic", "t", "--group", "g")
    assert output.code == 2
    assert output.err.startswith("kmr: no strategy: name one, as in `kmr run module:strategy`")


def test_a_wrong_flag_is_explained_like_any_other_setting(
    kmr: Callable[..., Any], folder: Path
) -> None:
    output = kmr("run", "flow", "--topic", "t", "--group", "g", "--fetch-max-bytes", "lots")
    assert output.code == 2
    assert output.err == (
        "kmr: fetch.max_bytes must be bytes, a whole number > 0, or with a unit as in 16MiB, "
        "not 'lots' (from flag --fetch-max-bytes)\n"
    )


def test_run_help_has_a_flag_for_every_setting(kmr: Callable[..., Any]) -> None:
    text = kmr("run", "--help").out
    for flag in (
        "--topic",
        "--group",
        "--fetch-max-bytes",
        "--http-port",
        "--log-level",
        "--config",
    ):
        assert f" {flag} " in text


def test_config_show_is_toml_that_can_be_read_back(kmr: Callable[..., Any], folder: Path) -> None:
    flags: tuple[str, ...] = (
        "--topic",
        "a",
        "--topic",
        "b",
        "--group",
        'é"x',
        "--session-timeout",
        "45s",
    )
    flags = (*flags, "--fetch-max-bytes", "20000001", "--http-port", "0")
    first = kmr("config", "show", *flags, "--security-sasl-password", "hunter2")
    assert first.code == 0
    assert "hunter2" not in first.out
    assert '# sasl_password = "***"' in first.out
    assert "# from flag --session-timeout" in first.out
    (folder / "kmr.toml").write_text(first.out, encoding="utf-8")
    shown = json.loads(kmr("config", "show", "--config", "kmr.toml", "--json").out)
    assert shown["topics"]["value"] == ["a", "b"]
    assert shown["group"] == {"value": 'é"x', "origin": "kmr.toml [kmr] group"}
    assert shown["session_timeout"]["value"] == 45.0
    assert shown["fetch.max_bytes"]["value"] == 20000001
    assert shown["http.port"]["value"] == 0
    assert shown["executor_workers"]["value"] is None


def test_run_is_documented() -> None:
    assert run.__doc__ is not None
    assert "Exit codes" in run.__doc__
