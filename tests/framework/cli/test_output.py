"""The output of commands: plain lines, JSON, tables without frames."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kmr.cli.output import plain_console, plain_table, print_json

if TYPE_CHECKING:
    import pytest


def test_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    line = "[bold]orders[/bold] 1234 " + "x" * 300
    plain_console().print(line)
    assert capsys.readouterr().out == f"{line}\n"


def test_json_is_indented_and_ends_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"rows": [1, 2], "name": "ä"})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"rows": [1, 2], "name": "ä"}
    assert printed.startswith('{\n  "rows"')
    assert printed.endswith("}\n")


def test_numbers_are_aligned_to_the_right_and_text_to_the_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = plain_table("NAME", "ROWS", left=("NAME",))
    table.add_row("orders", "7")
    table.add_row("x", "1,234")
    plain_console().print(table)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["NAME     ROWS", "orders      7", "x       1,234"]
