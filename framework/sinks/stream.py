"""Write rows as JSON to a stream or a file: for failed records, and for inspection."""

from __future__ import annotations

import copy
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self, TextIO, Unpack

import msgspec

from ..columns.texts import json_rows
from ..config.schema import Duration  # noqa: TC001
from ..errors import SinkError, StrategyError
from ..reducers.collect import Collecting, one_table
from ..reducers.reducer import Context, Retry, SizeLimits
from ..reducers.sink import (
    NEW,
    Capabilities,
    Refusal,
    RowsRefused,
    Sink,
    Write,
    refusals_among,
)

StreamFormat = Literal["json", "pretty"]

_STANDARD = ("stdout", "stderr")


class StreamWriter(Collecting, Sink):
    """Writes rows to a text stream, or appends them to a file.

    Bytes become text where they are UTF-8, else `base64:...`. Rows that JSON cannot hold (NaN, infinity)
    go to `reduce_err`.

    Example:
        ```python
        from kmr.sinks import StreamWriter

        to_terminal = StreamWriter("stdout", format="pretty")
        to_file = StreamWriter("rows.jsonl")
        ```

    Args:
        stream: `sys.stdout`, `sys.stderr`, their names, the path of a file, or any open text stream.
            The standard streams are kept by name, so that the reducer can be pickled; one with another
            open stream cannot.
        format: `json` writes one object per line, `pretty` indents it.
        max_age: the most seconds until a row is written.
        limits: further limits and policies of `Reducer`.

    Raises:
        StrategyError: there is no such format; from `open`: the file cannot be written.
        SinkError: from `flush`: the stream is closed (a broken pipe).
    """

    capabilities = Capabilities(
        difference_on_spark="in a task it writes where that runs: to the logs, or the disk, of an executor"
    )

    def __init__(
        self,
        stream: TextIO | str | os.PathLike[str],
        *,
        format: StreamFormat = "json",  # noqa: A002  the user's word
        max_age: Duration | None = 1.0,
        **limits: Unpack[SizeLimits],
    ) -> None:
        super().__init__(max_age=max_age, **limits)
        self.format = format
        self._name: str | None = None
        self._path: Path | None = None
        self._stream: TextIO | None = None
        self._takes_refused = True
        if stream in _STANDARD:
            self._name = str(stream)
        elif isinstance(stream, str | os.PathLike):
            self._path = Path(stream)
        elif stream in (sys.stdout, sys.__stdout__):
            self._name = "stdout"
        elif stream in (sys.stderr, sys.__stderr__):
            self._name = "stderr"
        elif hasattr(stream, "write"):
            self._stream = stream
        else:
            raise StrategyError(f"StreamWriter: {stream!r} is neither a text stream nor a path")

    def __deepcopy__(self, memo: object) -> Self:
        # The stream is shared: flushes of the two copies never overlap.
        other = copy.copy(self)
        other.reset()
        return other

    async def open(self, context: Context) -> None:
        self._takes_refused = context.for_sinks.takes_refused
        if self._path is not None:
            try:
                with self._path.open("ab"):
                    return
            except OSError as error:
                raise StrategyError(
                    f"{context.stage}: cannot write to {self._path}: {error.strerror}"
                ) from error

    def flush(self, write: Write = NEW) -> None:
        lines, refusals = self._encode()
        if refusals and not self._takes_refused:
            # The worker ends; the next one writes all rows of this flush.
            raise RowsRefused(refusals)
        if self._path is not None:
            _append(self._path, lines)
        else:
            self._write(lines)
        if refusals:
            raise RowsRefused(refusals)

    def _write(self, lines: bytes) -> None:
        stream: Any = self._stream if self._name is None else getattr(sys, self._name)
        where = self._name or getattr(stream, "name", "the stream")
        try:
            _write(stream, lines)
        except (OSError, ValueError) as error:
            # It is unknown how much was written: a retry might write rows twice.
            raise SinkError(f"StreamWriter: cannot write to {where} any more: {error}") from error

    def _encode(self) -> tuple[bytes, list[Refusal]]:
        rows = json_rows(one_table(self.rows))
        written = [each for row, each in enumerate(rows.objects) if row not in rows.refused]
        if self.format == "pretty":
            written = list(map(msgspec.json.format, written))
        lines = b"".join(each + b"\n" for each in written)
        return lines, refusals_among(self.rows, rows.refused)


def _write(stream: Any, lines: bytes) -> None:
    """Write as UTF-8, not in the stream's own encoding, if it has a binary buffer."""
    stream.flush()
    binary = getattr(stream, "buffer", None)
    if binary is None:
        stream.write(lines.decode())
    else:
        binary.write(lines)
        binary.flush()
    stream.flush()


def _append(path: Path, lines: bytes) -> None:
    """Append all lines or, when the disk is full, none. Raises Retry."""
    partly = False
    try:
        with path.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            rest = memoryview(lines)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                partly = len(rest) < len(lines)
                with suppress(OSError):  # a device has no length to restore
                    file.truncate(end)
                    partly = False
                raise
    except OSError as error:
        raise Retry(f"cannot write to {path}: {error.strerror}", may_double=partly) from error
