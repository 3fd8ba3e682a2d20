"""How records are written."""

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker.cli.formats import FORMATS, formatter
from kmr.broker.cli.terminal import UsageError


class Record(NamedTuple):
    topic: str = "t"
    partition: int = 1
    offset: int = 2
    timestamp: int = 3
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: tuple[tuple[str, bytes | None], ...] = ()


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("value", b"v\n"),
        ("key-value", b"k\tv\n"),
        ("full", b"t:1:2\tk\tv\th=1,n=\n"),
        ("raw", b"v"),
        (r"{timestamp}\t{headers}\0", b"3\th=1,n=\0"),
        (r"no {value} \\ { } \x\n", b"no v \\ { } \\x\n"),
        ("ümlaut {key}", "ümlaut k".encode()),
    ],
)
def test_records_are_written_in_each_format(form: str, expected: bytes) -> None:
    assert formatter(form)(Record(headers=(("h", b"1"), ("n", None)))) == expected


@given(st.binary(), st.binary())
def test_bytes_are_written_unchanged(key: bytes, value: bytes) -> None:
    record = Record(key=key, value=value)
    assert formatter("{key}|{value}")(record) == key + b"|" + value


@given(st.binary() | st.none(), st.binary() | st.none())
def test_json_is_always_one_line(key: bytes | None, value: bytes | None) -> None:
    line = formatter("json")(Record(key=key, value=value, headers=(("h", value),)))
    assert line.count(b"\n") == 1
    fields: dict[str, Any] = json.loads(line)
    assert ("value" in fields) != ("value_base64" in fields)
    assert (fields["offset"], fields["headers"][0]["name"]) == (2, "h")


def test_a_tombstone_is_null_in_json_and_nothing_elsewhere() -> None:
    tombstone = Record(value=None)
    assert json.loads(formatter("json")(tombstone))["value"] is None
    assert formatter("value")(tombstone) == b"\n"


@pytest.mark.parametrize("form", ["", "nonsense", "{nonsense}"])
def test_an_unknown_format_is_refused(form: str) -> None:
    with pytest.raises(UsageError, match="--format"):
        formatter(form)


def test_every_format_can_write_a_record() -> None:
    assert all(formatter(form)(Record()) for form in FORMATS)
