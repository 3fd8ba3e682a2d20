"""Rows on their way from tasks to the driver: of any columns, so as bytes in one column of the report.

The columns of a map are known only when it has run, and those of a Spark query before it starts: so rows
travel as Arrow streams, with the offsets that they stand for.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from framework.ranges import merge_ranges
from framework.record import Batch, Range, Rows
from framework.spark.offsets import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["PIECE_BYTES", "pack_rows", "unpack_rows"]

PIECE_BYTES: Final = 4 * 1024 * 1024
"""About how large one value of the column is: the JVM copies each several times."""

_ABOUT: Final = b"kmr"
_WRITING: Final = pa.ipc.IpcWriteOptions(compression="lz4")


class _About(msgspec.Struct, frozen=True):
    """What rows stand for.

    Attributes:
        ranges: `Rows.ranges`.
        sources: the offsets of the batches that they came from.
        has_offsets: whether the last column is `Rows.offsets`.
    """

    ranges: tuple[Range, ...]
    sources: tuple[Range, ...]
    has_offsets: bool


def pack_rows(rows: Rows, *, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """Rows as values of the column, in order; the rows of one record stay together."""
    rest: Rows | None = rows
    while rest is not None and len(rest):
        fitting = max(1, len(rest) * piece_bytes // max(1, rest.nbytes))
        piece, rest = rest.cut(fitting) if rest.offsets is not None else _halves(rest, fitting)
        yield _packed(piece)


def _halves(rows: Rows, fitting: int) -> tuple[Rows, Rows | None]:
    """The same for rows of no single record: both halves stand for all of the offsets."""
    if len(rows) <= fitting:
        return rows, None
    head, tail = rows.table.slice(0, fitting), rows.table.slice(fitting)
    return Rows(head, rows.ranges, None, rows.sources), Rows(tail, rows.ranges, None, rows.sources)


def _packed(rows: Rows) -> bytes:
    sources = (Range(b.topic, b.partition, b.first, b.last) for b in rows.sources)
    about = _About(rows.ranges, merge_ranges(sources), rows.offsets is not None)
    table = rows.table
    if rows.offsets is not None:
        table = table.append_column("", pa.array(rows.offsets))
    table = table.replace_schema_metadata({_ABOUT: msgspec.json.encode(about)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_WRITING) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def unpack_rows(value: Any, reread: Callable[[OffsetRange], pa.RecordBatch]) -> Rows:
    """The rows of one value.

    Args:
        reread: reads the original records of a range, if they are ever asked for.
    """
    table = pa.ipc.open_stream(value).read_all()
    about = msgspec.json.decode(table.schema.metadata[_ABOUT], type=_About)
    table = table.replace_schema_metadata(None)
    offsets = None
    if about.has_offsets:
        last = table.num_columns - 1
        offsets = table.column(last).to_numpy()
        table = table.remove_column(last)
    return Rows(table, about.ranges, offsets, tuple(_source(r, reread) for r in about.sources))


def _source(source: Range, reread: Callable[[OffsetRange], pa.RecordBatch]) -> Batch:
    wanted = OffsetRange(source.topic, source.partition, source.first, source.last + 1)
    load = partial(reread, wanted)
    return Batch(source.topic, source.partition, source.first, source.last, nbytes=0, load=load)
