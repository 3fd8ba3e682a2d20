"""Where texts and values of JSON end, and which are valid."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from kmr.formats.machine_code import INT64S, Ints, Kernel, load
from kmr.values.json import json_numbers, json_texts
from kmr.values.json.json_texts import copy_texts, skip_string, skip_value, text_end

WRONG = [b"\\x", b"\\u12g4", b"\\udc00", b"\\ud800a", b"\\ud800\\u0041", b"\\ud83d" * 2, b"\\u12"]


def ends(addresses: Ints, found: Ints) -> None:
    begin, end, limit = addresses[0], addresses[1], addresses[2]
    found[0] = skip_value(begin, end, limit)
    found[1] = skip_string(begin + 1, end, limit)
    at, plain = text_end(begin + 1, end, limit)
    found[2], found[3] = at, np.int64(plain)
    for position in range(3):
        if found[position] >= 0:
            found[position] -= begin


@cache
def kernel() -> Kernel:
    return load(
        __name__,
        {"ends": (INT64S, INT64S)},
        depends_on=(json_texts.__name__, json_numbers.__name__),
    )["ends"]


def found_in(text: bytes, behind: bytes = b"") -> list[int]:
    """Return the ends of a value, a string and a text, and whether that is plain; -1: it is not valid.

    `behind`: memory that follows the text, and is not part of it.
    """
    data = np.frombuffer(text + behind, np.uint8)
    begin = data.ctypes.data
    found = np.zeros(4, np.int64)
    kernel()(np.array([begin, begin + len(text), begin + len(data)], np.int64), found)
    as_list: list[int] = found.tolist()
    return as_list


@pytest.mark.parametrize(
    "value",
    [
        b"null",
        b"-1.5e3",
        b'"a\\n"',
        b"[]",
        b"{}",
        b'{"a": [1, {"b": false}], "c": ""}',
        b" [ [ ] , true ]",
        b"[" * 60 + b"1" + b"]" * 60,
    ],
)
def test_a_value_is_skipped_up_to_the_byte_after_it(value: bytes) -> None:
    assert found_in(value + b", 1")[0] == len(value)


@pytest.mark.parametrize(
    "value",
    [
        b" ", b"nul", b"[1,]", b"[1 2]", b'{"a"}', b'{"a":1,}', b"{1:2}", b"[}", b'"a', b"[1",
        b"[" * 61 + b"1" + b"]" * 61,
    ],
)  # fmt: skip
def test_a_value_that_is_not_valid_or_too_deep_is_refused(value: bytes) -> None:
    assert found_in(value)[0] == -1


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("", 1),
        ("long enough for a word", 1),
        ("ä€😀", 1),
        ('a\\"b', 0),
        ("\\u00e9\\ud83d\\ude00", 0),
    ],
)
def test_a_string_ends_at_its_quote(text: str, plain: int) -> None:
    written = f'"{text}"'.encode()
    last = len(written) - 1
    assert found_in(written + b",")[1:] == [last + 1, last, plain]


@pytest.mark.parametrize("text", [b"a\nb", b"\x00"])
def test_a_text_with_a_control_has_no_end(text: bytes) -> None:
    assert found_in(b'"' + text + b'"')[:3] == [-1, -1, -1]
    assert found_in(b'"' + text + b'"', bytes(32))[:3] == [-1, -1, -1]


@pytest.mark.parametrize("text", WRONG)
def test_wrong_escapes_are_refused_where_a_string_is_skipped_or_copied(text: bytes) -> None:
    assert found_in(b'"' + text + b'"')[1:3] == [-1, len(text) + 1]
    assert copied([b"good", text, b"too"]) == (["good", "", "too"], [1])


def test_a_text_ends_at_its_quote_wherever_the_quote_and_the_backslashes_stand_in_a_block() -> None:
    for size in range(70):
        for slashes in range(6):
            text = b'"' + b"x" * size + b"\\" * slashes + b'" : "\\"'
            expected = _end_of(text)
            for behind in (b"", b'"' * 32):
                assert found_in(text, behind)[2] == expected, text


def _end_of(text: bytes) -> int:
    end = text.index(b'"', 1)
    while (end - len(text[:end].rstrip(b"\\"))) % 2:
        end = text.find(b'"', end + 1)
        if end < 0:
            return end
    return end


@pytest.mark.parametrize("text", [b"long enough for a block of bytes, and more", b"\\u00e9" * 9])
def test_a_text_that_is_cut_has_no_end_even_if_the_memory_behind_has_one(text: bytes) -> None:
    for size in range(len(text) + 1):
        assert found_in(b'"' + text[:size], text[size:] + b'"' * 40)[:3] == [-1, -1, -1]


def copied(texts: list[bytes]) -> tuple[list[str], list[int]]:
    """Return texts without their escapes, and the rows that are wrong."""
    data = np.frombuffer(b"".join(texts), np.uint8)
    begins = np.cumsum([0, *map(len, texts)])[:-1]
    pieces = np.array(
        [(int(at) << 32) | len(text) for at, text in zip(begins, texts, strict=True)], np.int64
    )
    offsets, joined, wrong = copy_texts(data, pieces, np.ones(len(texts), np.bool_))
    whole = joined.tobytes()
    return [whole[begin:end].decode() for begin, end in pairwise(offsets)], wrong.tolist()


def test_texts_without_their_escapes_are_what_json_reads_wherever_these_stand_in_a_block() -> None:
    escapes = [b"\\t", b"\\u00e9\\u20ac", b"\\ud83d\\ude00", b'\\"\\\\\\/', b"\xc3\xa4\\b\\f"]
    for size in range(40):
        texts = [b"x" * size + each + b"y" * (40 - size) + each for each in escapes]
        texts += [b"", b"nothing to do here" * size]
        expected = [json.loads(b'"' + text + b'"') for text in texts]
        assert copied(texts) == (expected, [])
