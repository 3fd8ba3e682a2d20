"""Output, options and exit codes of commands."""

from __future__ import annotations

import signal

import pytest

from kmr.broker import BrokerError
from kmr.broker.cli.terminal import (
    CommandError,
    UsageError,
    columns,
    pairs,
    reports,
    required,
    runs,
    text_or_base64,
)


def test_numbers_are_flush_right_and_text_flush_left() -> None:
    assert columns(["NAME", "COUNT"], [("a", 1), ("long name", 1000), ("b", "-")]) == [
        "NAME       COUNT",
        "a              1",
        "long name   1000",
        "b              -",
    ]
    assert columns(["NAME"], []) == ["NAME"]


def test_pairs_have_a_name_and_any_value() -> None:
    assert pairs(["a=1", "b=x=y", "c="], "--header") == {"a": "1", "b": "x=y", "c": ""}
    for wrong in ("a", "=1", ""):
        with pytest.raises(UsageError, match=r"--header .*: expected name=value"):
            pairs([wrong], "--header")


def test_at_least_one_name_is_required() -> None:
    assert required(("a",), "topic") == ("a",)
    with pytest.raises(UsageError, match="name at least one topic"):
        required((), "topic")


def test_bytes_for_json_are_text_where_they_can_be() -> None:
    assert text_or_base64("key", "é".encode()) == {"key": "é"}
    assert text_or_base64("key", b"\xff") == {"key_base64": "/w=="}
    assert text_or_base64("key", None) == {"key": None}


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CommandError("it failed"), 1, "kmr broker: it failed\n"),
        (BrokerError("no data"), 1, "kmr broker: no data\n"),
        (UsageError("wrong"), 2, "kmr broker: wrong\n"),
        (KeyboardInterrupt(), 128 + signal.SIGINT, ""),
    ],
)
def test_an_expected_error_is_one_line_and_an_exit_code(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise error

    assert reports(command)() == code
    assert capsys.readouterr().err == message


def test_an_unexpected_error_is_raised() -> None:
    def command() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        reports(command)()


def test_an_async_command_returns_its_exit_code() -> None:
    async def command(code: int) -> int | None:
        return code or None

    assert (runs(command)(0), runs(command)(3)) == (0, 3)
