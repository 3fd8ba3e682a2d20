"""Errors: what a user sees of an exception."""

from __future__ import annotations

import pytest

from kmr import errors
from kmr.errors import (
    KmrError,
    OffsetOutOfRange,
    StrategyError,
    reason_of,
    require_columns,
    traceback_of,
    type_of,
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("not a number: 'x'"), "ValueError: not a number: 'x'"),
        (KeyError("user"), "KeyError: 'user'"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_a_reason_names_the_exception_and_its_message(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


def parse(value: str) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise KmrError("no number") from error


def raised(value: str) -> Exception:
    with pytest.raises(KmrError) as caught:
        parse(value)
    return caught.value


def test_a_traceback_has_the_lines_and_the_causes_of_an_exception() -> None:
    first, then = traceback_of(raised("x")).split("\n\nthen:\n")
    assert first.splitlines()[1:] == [
        "    return int(value)",
        "ValueError: invalid literal for int() with base 10: 'x'",
    ]
    assert f'File "{__file__}", line ' in first
    assert first.splitlines()[0].endswith(", in parse")
    assert then.endswith("KmrError: no number")


def test_a_traceback_ends_after_2000_characters() -> None:
    text = traceback_of(KmrError("x" * 5000))
    assert text == "x" * 2000


def test_a_class_has_its_module_unless_it_is_built_in() -> None:
    assert type_of(ValueError()) == "ValueError"
    assert type_of(KmrError()) == "kmr.errors.KmrError"


def test_every_public_error_is_shown_without_a_traceback() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__ if name[0].isupper()]
    assert all(issubclass(kind, KmrError) for kind in kinds)


def test_an_offset_that_is_out_of_range_has_its_partition() -> None:
    assert OffsetOutOfRange("gone").partition is None
    assert OffsetOutOfRange("gone", ("t", 0)).partition == ("t", 0)


def test_a_column_that_rows_lack_is_named_with_the_nearest_one() -> None:
    require_columns("Window", ["user", "at"], ["at", "user", "amount"])
    with pytest.raises(StrategyError) as caught:
        require_columns("Window", ["at", "usr"], ["at", "user"])
    assert (
        str(caught.value)
        == "Window: the rows have no column 'usr', only ['at', 'user']; did you mean user?"
    )
