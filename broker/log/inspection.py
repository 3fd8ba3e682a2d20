"""Reads segment files as they are, without opening the log that they belong to. Writes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.log.errors import LogCorrupt
from broker.records import (
    HEADER_BYTES,
    BatchError,
    BatchHeader,
    CorruptBatch,
    check_batch,
    parse_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["FoundBatch", "found_batches"]


class FoundBatch(NamedTuple):
    """A batch in a file.

    Attributes:
        position: byte of the file at which it begins.
        header: its header, whose own position is that in `data`.
        data: all of its bytes.
        problem: why they are not what was written, "" if they are.
    """

    position: int
    header: BatchHeader
    data: memoryview
    problem: str


def found_batches(path: Path) -> Iterator[FoundBatch]:
    """The batches of a segment, one after the other, also those whose CRC is wrong.

    Raises:
        LogCorrupt: there is no whole batch where one must be; nobody knows where the next one begins.
        OSError: the file cannot be read.
    """
    size, position = path.stat().st_size, 0
    with path.open("rb") as file:
        while position < size:
            start = file.read(HEADER_BYTES)
            try:
                header = parse_header(start)
                if position + header.size > size:
                    raise CorruptBatch(
                        f"a batch of {header.size} bytes is announced, {size - position} are there"
                    )
            except BatchError as error:
                raise LogCorrupt(path, position, str(error)) from None
            data = memoryview(start + file.read(header.size - HEADER_BYTES))
            problem = ""
            try:
                check_batch(data, header)
            except CorruptBatch as error:
                problem = str(error)
            yield FoundBatch(position, header, data, problem)
            position += header.size
