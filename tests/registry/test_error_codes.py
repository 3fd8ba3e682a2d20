"""Errors of the registry."""

from __future__ import annotations

import pytest

from kmr.registry import error_codes as errors


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.subject_not_found("s"), 404),
        (errors.invalid_schema("no JSON"), 422),
        (errors.RequestRefused(errors.INCOMPATIBLE, "x"), 409),
        (errors.RequestRefused(errors.STORE_FAILED, "x"), 500),
    ],
)
def test_the_status_is_the_first_three_digits_of_the_code(
    error: errors.RequestRefused, status: int
) -> None:
    assert error.status == status
