"""kmr broker produce and consume."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import anyio
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.partitioner import murmur2

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


def test_keys_choose_partitions_as_in_kafka(kmr: Kmr) -> None:
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


def test_a_value_that_is_the_null_text_is_a_tombstone(kmr: Kmr) -> None:
    kmr("topic", "create", "table", "--config", "cleanup.policy=compact")
    kmr(
        "produce", "table", "--key-separator", ":", "--null", "NULL", stdin=b"k:NULL\nk:NULLS\nl:\n"
    )
    read = kmr("consume", "table", "--from-beginning", "--format", "json")
    records = [json.loads(line) for line in read.lines]
    assert [(r["key"], r["value"]) for r in records] == [("k", None), ("k", "NULLS"), ("l", "")]


def test_each_line_may_have_headers_of_its_own(kmr: Kmr) -> None:
    kmr("topic", "create", "lines-with-headers")
    flags = ("--header-separator", "|", "--key-separator", ":", "--header", "all=1")
    sent = kmr("produce", "lines-with-headers", *flags, stdin=b"a=b=c,d=|k:v\nplain\n|x:y|z\n")
    assert sent.code == 0
    read = kmr("consume", "lines-with-headers", "--from-beginning", "--format", "json")
    records = [json.loads(line) for line in read.lines]
    assert [(r["key"], r["value"]) for r in records] == [
        ("k", "v"),
        (None, "plain"),
        ("x", "y|z"),
    ]
    headers = [[tuple(pair.values()) for pair in r["headers"]] for r in records]
    assert headers == [[("all", "1"), ("a", "b=c"), ("d", "")], [("all", "1")], [("all", "1")]]


def test_headers_of_a_line_that_cannot_be_read_are_explained(kmr: Kmr) -> None:
    kmr("topic", "create", "no-headers")
    result = kmr("produce", "no-headers", "--header-separator", "|", stdin=b"a|v\n")
    assert result.code == 1
    assert b"stdin: headers of a line must be name=value,name=value, not b'a'" in result.err


def test_a_header_whose_name_is_not_utf_8_is_named(
    kmr: Kmr, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def getmany(*_: object, **__: object) -> None:
        b"\xff".decode()  # as aiokafka reads the name

    kmr("topic", "create", "names")
    monkeypatch.setattr(AIOKafkaConsumer, "getmany", getmany)
    read = kmr("consume", "names", "--from-beginning")
    assert read.code == 1
    assert b"the name b'\\xff', which is not UTF-8; kmr peek TOPIC shows them" in read.err


def test_headers_and_the_partition_are_those_of_the_flags(kmr: Kmr) -> None:
    kmr("topic", "create", "flags", "--partitions", "3")
    kmr("produce", "flags", "--header", "a=1", "--header", "b=x=y", "--partition", "2", stdin=b"v")
    template = r"{topic} {partition} {offset} {headers} {value}\t"
    read = kmr("consume", "flags", "--from-beginning", "--format", template)
    assert read.out == b"flags 2 0 a=1,b=x=y v\t"


def test_bytes_that_are_not_utf_8_are_in_base64_in_json(kmr: Kmr) -> None:
    kmr("topic", "create", "binary")
    kmr("produce", "binary", stdin=b"\xff\xfe\n")
    read = kmr("consume", "binary", "--from-beginning", "--format", "json")
    assert json.loads(read.out)["value_base64"] == "//4="


def test_a_group_continues_at_its_committed_offsets(kmr: Kmr) -> None:
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


def test_read_committed_leaves_out_what_was_aborted(kmr: Kmr, servers: str) -> None:
    kmr("topic", "create", "transactions")

    async def produce() -> None:
        async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id="t") as producer:
            for value in (b"committed", b"aborted"):
                await producer.begin_transaction()
                await producer.send_and_wait("transactions", value, partition=0)
                if value == b"committed":
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()

    anyio.run(produce)
    consume = ("consume", "transactions", "--from-beginning", "--isolation-level")
    assert kmr(*consume, "read_committed").lines == ["committed"]
    assert kmr(*consume, "read_uncommitted").lines == ["committed", "aborted"]


def test_mistakes_are_one_line(kmr: Kmr) -> None:
    kmr("topic", "create", "single")
    for arguments, code, message in (
        (("consume", "missing"), 1, "topic missing: does not exist"),
        (("consume", "single", "--partition", "4"), 1, "topic single has no partition 4: it has 1"),
        (
            ("consume", "single", "--partition", "0", "--group", "g"),
            2,
            "--partition cannot be used with --group",
        ),
        (("consume", "single", "--max-records", "0"), 2, "--max-records 0: must be at least 1"),
        (("consume", "single", "--format", "nonsense"), 2, "--format 'nonsense'"),
        (("consume", "single", "--format", "{nonsense}"), 2, "--format: unknown field"),
        (("produce", "single", "--partition", "4"), 1, "topic single has no partition 4: it has 1"),
        (("produce", "single", "--header", "x"), 2, "--header 'x': expected name=value"),
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
