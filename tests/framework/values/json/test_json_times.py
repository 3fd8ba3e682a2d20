"""Dates and times of JSON are those that Python reads."""

from __future__ import annotations

import datetime as dt
from functools import cache

import numpy as np
import pytest

from kmr.formats.machine_code import INT64S, Ints, Kernel, load
from kmr.values.json import json_times
from kmr.values.json.json_times import day_of, moment_of

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def times(addresses: Ints, found: Ints) -> None:
    found[0] = day_of(addresses[0])
    found[1], is_time = moment_of(addresses[0], addresses[1])
    found[2] = np.int64(is_time)


@cache
def kernel() -> Kernel:
    return load(__name__, {"times": (INT64S, INT64S)}, depends_on=(json_times.__name__,))["times"]


def read(text: str) -> tuple[int | None, int | None]:
    """Return the day and the moment of a text; None: it is none."""
    data = np.frombuffer(text.encode().ljust(32), np.uint8)
    begin = data.ctypes.data
    found = np.zeros(3, np.int64)
    kernel()(np.array([begin, begin + len(text)], np.int64), found)
    day, moment, is_time = found.tolist()
    return (day if day >= -999_999 else None), (moment if is_time else None)


@pytest.mark.parametrize(
    "text",
    [
        "1970-01-01",
        "1969-12-31",
        "2000-02-29",
        "2024-03-01",
        "1900-02-28",
        "0002-01-01",
        "9998-12-31",
    ],
)
def test_dates_are_days_since_1970(text: str) -> None:
    assert read(text)[0] == (dt.date.fromisoformat(text) - EPOCH.date()).days


@pytest.mark.parametrize(
    "text",
    ["2023-02-29", "1900-02-29", "2024-04-31",
     "2024-13-01", "2024-00-01", "2024-01-00", "2024/01/01", "20x4-01-01"],
)  # fmt: skip
def test_days_that_do_not_exist_are_no_dates(text: str) -> None:
    assert read(text)[0] is None


@pytest.mark.parametrize(
    "text",
    [
        "1970-01-01T00:00:00Z",
        "2024-02-29T23:59:59.5Z",
        "1969-12-31T23:59:59.999999Z",
        "2024-01-01T00:30:00+01:00",
        "2024-01-01T00:30:00.25-05:30",
    ],
)
def test_moments_are_microseconds_since_1970(text: str) -> None:
    since = dt.datetime.fromisoformat(text) - EPOCH
    assert read(text)[1] == since // dt.timedelta(microseconds=1)


def test_a_moment_without_a_zone_is_taken_as_utc() -> None:
    assert read("1970-01-01T00:00:01")[1] == 1_000_000


@pytest.mark.parametrize(
    "end",
    ["T24:00:00", "T00:60:00", "T00:00:60", " 00:00:00", "T00:00:00.", "T00:00:00.1234567", "T00:00:00+24:00",
     "T00:00:00+0100", "T00:00:00Zx", "T00:00", "Ta0:00:00"],
)  # fmt: skip
def test_what_is_no_moment_is_refused(end: str) -> None:
    assert read(f"2024-01-01{end}")[1] is None
