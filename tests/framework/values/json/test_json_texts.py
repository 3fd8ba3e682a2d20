"""Where texts and values of JSON end, and which are valid."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from kmr.formats.machine_code import INT64S, Ints, Kernel, load
from kmr.values.json import json_numbers, json_texts
from kmr.values.json.json_texts import skip_value, string_end, text_end, unescape


def ends(addresses: Ints, found: Ints) -> None:
    begin, end = addresses[0], addresses[1]
    found[0] = skip_value(begin, end)
    at, plain = string_end(begin + 1, end)
    found[1], found[2] = at, np.int64(plain)
    found[3], _ = text_end(begin + 1, end)
    for position in (0, 1, 3):
        if found[position] >= 0:
            found[position] -= begin


@cache
def kernel() -> Kernel:
    return load(
        __name__,
        {"ends": (INT64S, INT64S)},
        depends_on=(json_texts.__name__, json_numbers.__name__),
    )["ends"]


def found_in(text: bytes) -> list[int]:
    """Return the ends of a value, a string (and whether it is plain) and a text; -1: it is not valid."""
    data = np.frombuffer(text, np.uint8)
    begin = data.ctypes.data
    found = np.zeros(4, np.int64)
    kernel()(np.array([begin, begin + len(data)], np.int64), found)
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
    assert found_in(written + b",")[1:] == [last, plain, last]


@pytest.mark.parametrize("text", [b"a\nb", b"\\x", b"\\u12g4", b"\\udc00", b"\\ud800a"])
def test_controls_and_wrong_escapes_are_refused(text: bytes) -> None:
    _, string, _, also = found_in(b'"' + text + b'"')
    assert (string, also) == (-1, -1)


@pytest.mark.parametrize(
    "text", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"]
)
def test_only_the_end_of_a_text_may_be_found_without_valid_utf8(text: bytes) -> None:
    _, string, _, also = found_in(b'"' + text + b'"')
    assert (string, also) == (-1, len(text) + 1)


def test_texts_without_their_escapes_are_what_json_reads() -> None:
    texts = [b"a\\tb", b"", b"\\u00e9\\u20ac\\ud83d\\ude00", b"nothing to do here", b'\\"\\\\\\/']
    data = np.frombuffer(b"".join(texts), np.uint8)
    begins = np.cumsum([0, *map(len, texts)])[:-1]
    pieces = np.array(
        [(int(at) << 32) | len(text) for at, text in zip(begins, texts, strict=True)], np.int64
    )
    offsets, joined = unescape(data, pieces)
    whole = joined.tobytes()
    assert [whole[begin:end].decode() for begin, end in pairwise(offsets)] == [
        json.loads(b'"' + text + b'"') for text in texts
    ]
