"""Lines of a log whose reader is slow, or is not there."""

from __future__ import annotations

import logging
import os
import select
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

import pytest

from kmr.service import log_handler
from kmr.service.log_handler import LogHandler

if TYPE_CHECKING:
    from collections.abc import Iterator


class Reader:
    """A pipe, and the bytes that the test has read from it."""

    def __init__(self) -> None:
        self.read, write = os.pipe()
        self.stream: TextIO = os.fdopen(write, "w")
        self.handler = LogHandler(self.stream)

    def log(self, text: str) -> None:
        """Log a line."""
        self.handler.handle(logging.makeLogRecord({"msg": text}))

    def fill(self) -> None:
        """Write until nothing more fits."""
        os.set_blocking(self.stream.fileno(), False)
        with suppress(BlockingIOError):
            while True:
                os.write(self.stream.fileno(), b"." * select.PIPE_BUF)
        os.set_blocking(self.stream.fileno(), True)

    def lines(self) -> list[str]:
        """Read all bytes that the pipe has now."""
        found = b""
        while select.select([self.read], [], [], 0)[0]:
            found += os.read(self.read, 1 << 16)
        return found.decode().lstrip(".").splitlines()


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setattr(log_handler, "_PATIENCE", 0.1)
    made = Reader()
    yield made
    made.handler.close()
    made.stream.close()
    with suppress(OSError):
        os.close(made.read)


def test_lines_are_left_out_while_nobody_reads_and_counted_when_somebody_does(
    reader: Reader,
) -> None:
    reader.log("first")
    assert reader.lines() == ["first"]
    reader.fill()
    began = time.monotonic()
    for number in range(1000):
        reader.log(f"line {number}")
    assert time.monotonic() - began < 50, "each of them would wait for 0.1 s"
    reader.lines()
    reader.log("after")
    assert reader.lines() == [
        "lines of the log were left out, because nobody read it (1000)",
        "after",
    ]


def test_a_line_longer_than_the_pipe_does_not_hold_the_process_up(reader: Reader) -> None:
    reader.log("x" * (1 << 18))
    (begin,) = reader.lines()
    assert 0 < len(begin) < 1 << 18


def test_a_reader_that_has_gone_is_no_error(reader: Reader) -> None:
    os.close(reader.read)
    reader.log("to nobody")


def test_a_stream_that_is_no_file_gets_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    LogHandler().handle(logging.makeLogRecord({"msg": "a line"}))
    assert capsys.readouterr().err == "a line\n"


def test_lines_are_written_after_the_strategy_has_closed_the_stream(reader: Reader) -> None:
    reader.stream.close()
    reader.log("a line")
    assert reader.lines() == ["a line"]
