"""Descriptions, flags and types of every settings struct; sizes and times with units."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker.settings import BROKER
from kmr.config.schema import (
    BYTES,
    MASK,
    SECONDS,
    parse_quantity,
    read_quantity,
    show_count,
    show_quantity,
)
from kmr.settings import GROUP, WORKER

every_struct = pytest.mark.parametrize(
    "settings",
    [
        pytest.param(layers.settings, id=layers.struct.__name__)
        for layers in (WORKER, GROUP, BROKER)
    ],
)


@every_struct
def test_every_setting_has_a_description_and_a_flag_of_its_own(settings: Any) -> None:
    assert all(setting.description for setting in settings)
    assert len({setting.flag for setting in settings}) == len(settings)


@every_struct
def test_every_default_is_allowed(settings: Any) -> None:
    for setting in settings:
        if not setting.required:
            assert setting.convert(setting.default) == setting.default


@every_struct
def test_every_setting_says_in_words_what_is_allowed(settings: Any) -> None:
    known = (
        "one of ",
        "a ",
        "text",
        "host:port",
        "true or false",
        "bytes, ",
        "seconds, ",
        "'none'",
    )
    for setting in settings:
        assert setting.allowed.startswith(known), setting.name


def test_only_passwords_are_secret() -> None:
    secret, other = [setting for setting in WORKER.settings if setting.secret]
    assert (secret.name, other.name) == ("security.sasl_password", "security.oauth_client_secret")
    assert (secret.masked("hunter2"), secret.shown("hunter2")) == (MASK, MASK)
    assert secret.masked(None) is None


def test_a_section_of_the_help_lasts_until_the_next_begins() -> None:
    sections = {setting.name: setting.section for setting in WORKER.settings}
    assert sections["strategy"] == sections["stall_timeout"] == "Settings"
    assert sections["security.protocol"] == sections["security.ssl_keyfile"] == "Security"
    assert sections["fetch.max_wait"] == "Fetching"


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
    assert parse_quantity(text, BYTES) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("1.5", 1.5), ("500ms", 0.5), ("2m", 120), ("1 h", 3600), ("7d", 604_800)],
)
def test_a_time_may_have_a_unit(text: str, seconds: float) -> None:
    assert parse_quantity(text, SECONDS) == seconds


@pytest.mark.parametrize("text", ["", "many", "-1", "1x", "1 m s"])
@pytest.mark.parametrize("unit", [BYTES, SECONDS])
def test_other_text_is_refused(text: str, unit: str) -> None:
    with pytest.raises(ValueError, match="is not a number with one of the units"):
        parse_quantity(text, unit)


def test_a_part_of_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="whole number of bytes"):
        parse_quantity("0.5", BYTES)


@given(st.integers(0, 2**50))
def test_a_size_that_is_shown_can_be_read(size: int) -> None:
    assert parse_quantity(show_quantity(size, BYTES), BYTES) == size


@given(st.integers(0, 10**6))
def test_a_time_that_is_shown_can_be_read(seconds: int) -> None:
    assert parse_quantity(show_quantity(seconds, SECONDS), SECONDS) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("16MiB", BYTES, 16 * 1024 * 1024),
        ("1.5 KiB", BYTES, 1536),
        ("2MB", BYTES, 2_000_000),
        ("10k", BYTES, 10_000),
        ("1_000 B", BYTES, 1000),
        ("500ms", SECONDS, 0.5),
        ("2 min", SECONDS, 120.0),
        ("1h", SECONDS, 3600.0),
        ("7", SECONDS, "7"),
        ("5 parsec", SECONDS, "5 parsec"),
        ("-1s", SECONDS, "-1s"),
    ],
)
def test_a_quantity_is_read_with_its_unit(text: str, unit: str, value: object) -> None:
    assert read_quantity(text, unit) == value


@given(st.integers(1, 2**40))
def test_bytes_written_in_kibibytes_are_exact(kibibytes: int) -> None:
    assert read_quantity(f"{kibibytes}KiB", BYTES) == kibibytes * 1024


def test_a_count_has_its_noun_in_the_singular_only_for_one() -> None:
    assert [show_count(n, "row") for n in (0, 1, 2, 1000)] == [
        "0 rows", "1 row", "2 rows", "1,000 rows"
    ]  # fmt: skip
