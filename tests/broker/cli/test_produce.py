"""kmr broker produce."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker.cli import produce
from kmr.broker.cli.produce import read_lines
from kmr.broker.cli.terminal import CommandError

if TYPE_CHECKING:
    from tests.broker.cli.conftest import Kmr


def test_a_record_that_is_too_large_fails_in_one_line(kmr: Kmr) -> None:
    kmr("topic", "create", "small", "--config", "max.message.bytes=1000")
    result = kmr("produce", "small", stdin=b"x" * 5_000)
    assert result.code == 1
    assert result.err.startswith(b"kmr broker: topic small: records were not accepted (")


def test_a_compacted_topic_that_refuses_records_without_a_key_is_explained(kmr: Kmr) -> None:
    kmr("topic", "create", "table", "--config", "cleanup.policy=compact")
    result = kmr("produce", "table", stdin=b"x\n")
    assert result.code == 1
    assert b"A compacted topic takes only records with a key" in result.err


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
    with pytest.raises(CommandError, match="more than 1000 bytes"):
        await anext(read_lines(reader))
    os.close(writer)
    os.close(reader)
