"""Sizes and times with units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cli.quantities import read_bytes, read_seconds, show_bytes, show_seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1_000", 1000),
        ("16MiB", 16 * 1024**2),
        ("1.5 KiB", 1536),
        ("2k", 2000),
        ("3GB", 3_000_000_000),
        ("1tib", 1024**4),
    ],
)
def test_a_size_may_have_a_unit(text: str, size: int) -> None:
    assert read_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("1.5", 1.5), ("500ms", 0.5), ("2m", 120), ("1 h", 3600), ("7d", 604_800)],
)
def test_a_time_may_have_a_unit(text: str, seconds: float) -> None:
    assert read_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "many", "-1", "1x", "1 m s"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number with one of the units"):
        read_bytes(text)
    with pytest.raises(ValueError, match="is not a number with one of the units"):
        read_seconds(text)


def test_a_part_of_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number of bytes"):
        read_bytes("0.5")


@given(st.integers(0, 2**50))
def test_a_size_that_is_shown_can_be_read(size: int) -> None:
    assert read_bytes(show_bytes(size)) == size


@given(st.integers(0, 10**6))
def test_a_time_that_is_shown_can_be_read(seconds: int) -> None:
    assert read_seconds(show_seconds(seconds)) == pytest.approx(seconds)
