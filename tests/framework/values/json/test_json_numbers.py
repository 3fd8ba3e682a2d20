"""Numbers of JSON are those that Python reads, or are left to another."""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from kmr.formats.machine_code import INT64S, Ints, Kernel, load
from kmr.values.json import json_numbers
from kmr.values.json.json_numbers import as_float, as_integer, scan_number, short_integer


class Found(NamedTuple):
    """A number that was read: its size in bytes (-1: it is none), and what it is."""

    size: int
    is_integer: bool
    power: int
    integer: int | None
    number: float | None


def scan(addresses: Ints, found: Ints) -> None:
    begin, end, negative = addresses[0], addresses[1], addresses[2] != 0
    at, is_integer, mantissa, power = scan_number(begin, end, addresses[3])
    found[0] = at - begin if at >= 0 else at
    found[1] = np.int64(is_integer)
    found[2] = power
    found[3], fits = as_integer(mantissa, power, negative)
    found[4] = np.int64(fits)
    found[5], known = as_float(mantissa, power, negative)
    found[6] = np.int64(known)


def scan_short(addresses: Ints, found: Ints) -> None:
    begin = addresses[0]
    at, found[1] = short_integer(begin, addresses[1], addresses[2])
    found[0] = at - begin if at >= 0 else at


@cache
def kernel() -> dict[str, Kernel]:
    signatures = {"scan": (INT64S, INT64S), "scan_short": (INT64S, INT64S)}
    return load(__name__, signatures, depends_on=(json_numbers.__name__,))


def read(text: str, behind: int = 0) -> Found:
    """Read a number from memory that has so many more digits."""
    data = np.frombuffer(text.encode() + b"7" * behind, np.uint8)
    begin = data.ctypes.data
    end = begin + len(text)
    addresses = np.array([begin, end, text.startswith("-"), end + behind], np.int64)
    found = np.zeros(7, np.int64)
    kernel()["scan"](addresses, found)
    size, is_integer, power, integer, fits, bits, known = found.tolist()
    (number,) = struct.unpack("<d", struct.pack("<q", bits))
    return Found(
        size, bool(is_integer), power, integer if fits else None, number if known else None
    )


@pytest.mark.parametrize(
    "text", ["0", "-1", "12345678", "1234567890123456789", str(2**63 - 1), str(-(2**63))]
)
def test_integers_of_64_bits_are_read_exactly(text: str) -> None:
    found = read(text)
    assert (found.size, found.is_integer, found.integer) == (len(text), True, int(text))


def test_integers_beyond_64_bits_do_not_fit() -> None:
    assert read(str(2**63)).integer is None
    assert read(str(-(2**63) - 1)).integer is None
    assert read("1" * 20).power == 9999


@pytest.mark.parametrize(
    "text",
    [
        "0.1",
        "-2.5",
        "1e3",
        "1E+22",
        "123456.789e-10",
        "1.7976931348623157e308",
        "9007199254740993.7",
        "9661549171280272.0",
        "4908436002360.3125",
        "12345678901234567e-27",
        "9007199254740993.0",
        "9007199254740995.0",
        "4503599627370496.5",
        "1125899906842624.125",
        "5.836112769733888e+19",
    ],
)
def test_floats_are_the_nearest_ones(text: str) -> None:
    found = read(text)
    assert (found.size, found.is_integer, found.number) == (len(text), False, float(text))


@pytest.mark.parametrize("text", ["1e999", "1e-400", "-0.0"])
def test_floats_that_are_not_certain_are_not_known(text: str) -> None:
    assert read(text).number is None


@pytest.mark.parametrize("text", ["", "-", "01", "-01", ".5", "1.", "1.e3", "1e", "1e+", "a", "+1"])
def test_what_is_no_number_is_refused(text: str) -> None:
    assert read(text).size == -1


def test_a_number_is_the_same_wherever_its_digits_stand_in_a_word_and_whatever_is_behind_it() -> (
    None
):
    for digits in range(1, 20):
        whole = "1234567890123456789"[:digits]
        for text in (whole, f"-{whole}", f"0.{whole}", f"{whole}.{whole[:3]}e7"):
            for behind in (0, 8):
                found = read(text, behind)
                assert found.size == len(text)
                assert found.integer == int(whole) or "." in text or text.startswith("-")
                assert found.number in (float(text), None)


def test_a_number_ends_at_the_first_other_byte() -> None:
    assert read("12,3").size == 2
    assert read("0.000000000000000000000001}").size == 26
    for byte in {*range(128)} - {*b"0123456789.eE"}:
        assert [read(f"12{chr(byte)}3456789").size, read(f"12{chr(byte)}3").size] == [2, 2]


def read_short(text: str, behind: str) -> list[int]:
    """Read an integer of a row that ends before `behind`: its size (-1: it is not read), and its value."""
    data = np.frombuffer(f"{text}{behind}".encode(), np.uint8)
    begin = data.ctypes.data
    found = np.zeros(2, np.int64)
    addresses = np.array([begin, begin + len(text), begin + len(data)], np.int64)
    kernel()["scan_short"](addresses, found)
    as_list: list[int] = found.tolist()
    return as_list


@pytest.mark.parametrize("digits", range(1, 8))
@pytest.mark.parametrize("follows", [",", "]", "}"])
def test_an_integer_of_up_to_7_digits_is_read_from_one_word(digits: int, follows: str) -> None:
    for value in {10 ** (digits - 1), 10**digits - 1, 10**digits // 7, 0}:
        assert read_short(f"{value}{follows}", "77777777") == [len(str(value)), value]


@pytest.mark.parametrize(
    "text", ["12345678,", "1.5,", "1e5,", "1 ,", "007,", "00,", "x,", "-1,", ",", "1", "12:", "1M,"]
)
def test_what_is_no_short_integer_before_a_comma_or_bracket_is_left(text: str) -> None:
    assert read_short(text, ",,,,,,,,")[0] == -1


def test_a_short_integer_is_not_read_beyond_its_row_or_the_memory() -> None:
    assert read_short("123", ",,,,,,,,")[0] == -1
    assert read_short("1234,", "")[0] == -1
