"""kmr broker produce and consume."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from aiokafka.partitioner import murmur2
from hypothesis import given
from hypothesis import strategies as st

from broker.cli import produce
from broker.cli.errors import CommandError
from broker.cli.produce import read_lines

if TYPE_CHECKING:
    from tests.broker.cli.conftest import Kmr


def test_lines_become_records_and_come_back(kmr: Kmr) -> None:
    kmr("topic", "create", "lines")
    sent = kmr("produce", "lines", stdin=b"one\n\n three\nno line end")
    assert sent == (0, b"", b"4 records sent to lines\n")

    read = kmr("consume", "lines", "--from-beginning")

    assert read == (0, b"one\n\n three\nno line end\n", b"")


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_any_bytes_survive_with_every_codec(kmr: Kmr, compression: str) -> None:
    topic = f"bytes-{compression}"
    data = bytes(range(256)).replace(b"\n", b"") * 50
    kmr("topic", "create", topic)
    kmr("produce", topic, "--compression", compression, stdin=data)
    assert kmr("consume", topic, "--from-beginning", "--format", "raw").out == data


def test_keys_decide_about_partitions_as_in_kafka(kmr: Kmr) -> None:
    kmr("topic", "create", "keyed", "--partitions", "4")
    keys = [b"k%d" % index for index in range(50)]
    lines = b"".join(key + b"::value " + key + b"\n" for key in keys)
    kmr("produce", "keyed", "--key-separator", "::", stdin=lines)

    read = kmr("consume", "keyed", "--from-beginning", "--format", r"{partition} {key} {value}\n")

    expected = {b"%d %s value %s" % ((murmur2(key) & 0x7FFFFFFF) % 4, key, key) for key in keys}
    assert set(read.out.splitlines()) == expected


def test_a_line_without_the_separator_has_no_key(kmr: Kmr) -> None:
    kmr("topic", "create", "some-keys")
    kmr("produce", "some-keys", "--key-separator", ":", stdin=b"k:a:b\nplain\n:empty key\n")
    read = kmr("consume", "some-keys", "--from-beginning", "--format", "json")
    records = [json.loads(line) for line in read.lines]
    assert [(r["key"], r["value"]) for r in records] == [
        ("k", "a:b"),
        (None, "plain"),
        ("", "empty key"),
    ]


def test_headers_and_the_partition_are_those_of_the_flags(kmr: Kmr) -> None:
    kmr("topic", "create", "flags", "--partitions", "3")
    kmr("produce", "flags", "--header", "a=1", "--header", "b=x=y", "--partition", "2", stdin=b"v")
    template = r"{topic} {partition} {offset} {headers} {value}\t"
    read = kmr("consume", "flags", "--from-beginning", "--format", template)
    assert read.out == b"flags 2 0 a=1,b=x=y v\t"


def test_bytes_that_are_no_text_are_in_base64_in_json(kmr: Kmr) -> None:
    kmr("topic", "create", "binary")
    kmr("produce", "binary", stdin=b"\xff\xfe\n")
    read = kmr("consume", "binary", "--from-beginning", "--format", "json")
    assert json.loads(read.out)["value_base64"] == "//4="


def test_a_group_goes_on_where_it_was(kmr: Kmr) -> None:
    kmr("topic", "create", "shared", "--partitions", "3")
    kmr(
        "produce",
        "shared",
        "--key-separator",
        ",",
        stdin=b"".join(b"%d,%d\n" % (n, n) for n in range(100)),
    )
    consume = ("consume", "shared", "--group", "g")
    first = kmr(*consume, "--from-beginning", "--max-records", "30").lines
    assert len(first) == 30
    second = kmr(*consume).lines
    assert sorted(map(int, first + second)) == list(range(100))
    assert kmr(*consume).lines == []


def test_only_the_partitions_that_are_named_are_read(kmr: Kmr) -> None:
    kmr("topic", "create", "parts", "--partitions", "3")
    for index in range(3):
        kmr("produce", "parts", "--partition", str(index), stdin=b"%d\n" % index)
    read = kmr("consume", "parts", "--from-beginning", "--partition", "0", "--partition", "2")
    assert sorted(read.lines) == ["0", "2"]


def test_mistakes_are_one_line(kmr: Kmr) -> None:
    kmr("topic", "create", "single")
    for arguments, code, message in (
        (("consume", "missing"), 1, "topic missing: does not exist"),
        (("consume", "single", "--partition", "4"), 1, "topic single has no partition 4: it has 1"),
        (("consume", "single", "--partition", "0", "--group", "g"), 2, "--partition is not for"),
        (("consume", "single", "--max-records", "0"), 2, "--max-records 0: must be at least 1"),
        (("consume", "single", "--format", "nonsense"), 2, "--format 'nonsense'"),
        (("consume", "single", "--format", "{nonsense}"), 2, "--format: there is no field"),
        (("produce", "single", "--partition", "4"), 1, "topic single has no partition 4: it has 1"),
        (("produce", "single", "--header", "x"), 2, "--header 'x' is not of the form"),
        (("produce", "missing"), 1, "topic missing: does not exist"),
        (
            ("consume", "single", "--security-protocol", "SASL_SSL"),
            2,
            "--security-protocol SASL_SSL",
        ),
    ):
        result = kmr(*arguments, stdin=b"x\n")
        assert result.err.decode().startswith(f"kmr broker: {message}")
        assert (result.code, result.err.count(b"\n")) == (code, 1)


def test_a_record_that_is_too_large_fails_and_says_so(kmr: Kmr) -> None:
    kmr("topic", "create", "small", "--config", "max.message.bytes=1000")
    result = kmr("produce", "small", stdin=b"x" * 5_000)
    assert result.code == 1
    assert result.err.startswith(b"kmr broker: topic small: records were not accepted, 0 were")


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=10))
async def test_lines_do_not_depend_on_how_they_arrive(chunks: list[bytes]) -> None:
    reader, writer = os.pipe()
    lines: list[bytes] = []
    try:
        source = read_lines(reader)
        for chunk in chunks:
            os.write(writer, chunk)
            if b"\n" in chunk:
                lines += await anext(source)
        os.close(writer)
        async for some in source:
            lines += some
    finally:
        os.close(reader)
    whole = b"".join(chunks)
    expected = whole.split(b"\n")
    assert lines == (expected if expected[-1] else expected[:-1])


async def test_a_line_without_an_end_does_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(produce, "_MAX_LINE_BYTES", 1_000)
    reader, writer = os.pipe()
    os.write(writer, b"x" * 2_000)
    with pytest.raises(CommandError, match="longer than 1000 bytes"):
        await anext(read_lines(reader))
    os.close(writer)
    os.close(reader)
