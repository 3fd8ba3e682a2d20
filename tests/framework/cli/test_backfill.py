"""kmr backfill: its flags. What it does is tested in `tests/framework/history`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

WHERE = ("hits:strategy", "--topic", "t", "--group", "g", "--bootstrap-servers", "127.0.0.1:1")


@pytest.mark.parametrize("bound", ["yesterday", "0:5,1", "-3"])
@pytest.mark.parametrize("flag", ["--from", "--until"])
def test_a_bound_that_is_no_place_is_explained(
    kmr: Callable[..., Any], flag: str, bound: str
) -> None:
    refused = kmr("backfill", *WHERE, f"{flag}={bound}")
    assert refused.code == 2
    word = "earliest" if flag == "--from" else "now"
    assert f"{flag} must be {word}, a time such as" in refused.err


def test_columns_of_an_archive_that_are_no_mapping_are_explained(
    kmr: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain.py").write_text(
        "from kmr import Strategy\nfrom kmr.sinks import StreamWriter\n"
        "def f(record): return {'id': 1}\n"
        "strategy = Strategy(map=f, reduce=StreamWriter('stdout'))\n"
    )
    monkeypatch.chdir(tmp_path)
    archive = ("--archive", "a", "--archive-columns", "price=a")
    refused = kmr("backfill", "plain:strategy", *WHERE[1:], *archive)
    assert refused.code == 2
    assert "archive_columns must be pairs such as value=payload" in refused.err


def test_a_strategy_is_needed(kmr: Callable[..., Any]) -> None:
    refused = kmr("backfill", *WHERE[1:])
    assert refused.code == 2
    assert "strategy is not set: give it as in `kmr backfill module:strategy`" in refused.err
