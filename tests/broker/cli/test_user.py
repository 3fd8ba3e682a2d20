"""kmr broker user."""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.broker.cli.conftest import Offline


def test_users_are_added_listed_and_removed(offline: Offline, tmp_path: Path) -> None:
    assert offline("user", "add", "bob", stdin="secret\n") == (0, "bob: added\n", "")
    assert offline("user", "add", "alice", "--iterations", "4096", stdin="other") == (
        0,
        "alice: added\n",
        "",
    )
    path = tmp_path / "users.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "secret" not in path.read_text()
    assert offline("user", "list") == (0, "alice\nbob\n", "")
    assert offline("user", "remove", "bob") == (0, "bob: removed\n", "")
    assert offline("user", "list") == (0, "alice\n", "")


def test_an_existing_user_is_replaced_only_with_the_flag(offline: Offline, tmp_path: Path) -> None:
    offline("user", "add", "alice", stdin="one\n")
    before = (tmp_path / "users.json").read_bytes()
    code, _, said = offline("user", "add", "alice", stdin="two\n")
    assert (code, (tmp_path / "users.json").read_bytes()) == (1, before)
    assert "--replace" in said
    assert offline("user", "add", "alice", "--replace", stdin="two\n")[0] == 0
    assert (tmp_path / "users.json").read_bytes() != before


@pytest.mark.parametrize(
    ("arguments", "stdin", "code"),
    [
        (["add", "alice"], "\n", 2),
        (["add", ""], "secret\n", 2),
        (["add", "alice", "--iterations", "10"], "secret\n", 2),
        (["remove", "alice"], "", 1),
        (["list"], "", 1),
    ],
)
def test_a_mistake_about_users_is_one_line(
    offline: Offline, arguments: list[str], stdin: str, code: int
) -> None:
    ended, out, said = offline("user", *arguments, stdin=stdin)
    assert (ended, out) == (code, "")
    assert re.fullmatch(r"kmr broker: .+\n", said)
