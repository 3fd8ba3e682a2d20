"""Errors: what a user sees of an exception."""

from __future__ import annotations

import pytest

from kmr import errors
from kmr.errors import KmrError, OffsetOutOfRange, reason_of


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


def test_every_public_error_is_shown_without_a_traceback() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__ if name[0].isupper()]
    assert all(issubclass(kind, KmrError) for kind in kinds)


def test_an_offset_that_is_out_of_range_has_its_partition() -> None:
    assert OffsetOutOfRange("gone").partition is None
    assert OffsetOutOfRange("gone", ("t", 0)).partition == ("t", 0)
