"""The rows of several Parquet files in one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from framework.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from framework.sinks.spark.files import Directory

__all__ = ["merge_files"]

_ROW_GROUP_BYTES = 64 * 1024 * 1024


def merge_files(directory: Directory, paths: Sequence[str], into: str) -> None:
    """Write the rows of files into one, in order, in large row groups; memory holds one of those.

    Raises:
        SinkError: the files have columns of types that do not go together.
        OSError: of the file system.
    """
    schemas = []
    for path in paths:
        with directory.filesystem.open_input_file(path) as file:
            schemas.append(pq.read_schema(file).remove_metadata())
    try:
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise SinkError(
            f"{paths[0].rpartition('/')[0]}: files have columns of types that do not go together ({error})"
        ) from error
    with (
        directory.filesystem.open_output_stream(into) as stream,
        pq.ParquetWriter(stream, schema, compression=directory.compression) as writer,
    ):
        waiting: list[pa.Table] = []
        for path in paths:
            with directory.filesystem.open_input_file(path) as file:
                for batch in pq.ParquetFile(file).iter_batches():
                    waiting.append(_with_columns(pa.Table.from_batches([batch]), schema))
                    if sum(table.nbytes for table in waiting) >= _ROW_GROUP_BYTES:
                        writer.write_table(pa.concat_tables(waiting))
                        waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting))


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a schema, in its order; those that the rows have not are null."""
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
