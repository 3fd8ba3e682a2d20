"""Rows of several branches in one table: one column, an Arrow dense union with a member for each branch.

So rows of unlike columns keep the order of their records, and are sliced, taken and sent to another process
as any table is. A union has at most 128 members; more branches are a union of unions.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

_pa: Any = pa
_COLUMN: Final = "kmr row of a branch"  # a column of a map may be a union, too
_MOST_MEMBERS: Final = 128
_TAG_BYTES: Final = 5  # of a code and a place


def tag(tables: Mapping[str, pa.Table], order: Mapping[str, NDArray[np.int64]]) -> pa.Table:
    """Join the tables of branches to one table of tagged rows.

    Args:
        tables: the rows of each branch, by its name.
        order: for each row of each branch, ascending, its place in the joined table.
    """
    rows = sum(table.num_rows for table in tables.values())
    members = [(name, _struct(table), order[name]) for name, table in tables.items()]
    return pa.table({_COLUMN: _union(members, rows)})


def tagged_schema(of: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return the schema of tagged rows with these columns of each branch."""
    return tag(
        {name: schema.empty_table() for name, schema in of.items()},
        {name: np.empty(0, np.int64) for name in of},
    ).schema


def is_tagged(schema: pa.Schema) -> bool:
    """Return whether the rows of a table are tagged with their branches."""
    return schema.names == [_COLUMN] and pa.types.is_union(schema.field(0).type)


def branches(table: pa.Table) -> Iterator[tuple[str, pa.Table, NDArray[np.int64]]]:
    """Divide tagged rows: the name of each branch, its rows, and their places in `table`, ascending.

    A branch without rows is left out. The rows keep their order.
    """
    found: dict[str, tuple[list[pa.Table], list[NDArray[np.int64]]]] = {}
    first = 0
    for chunk in table.column(0).chunks:
        for name, rows, places in _members(chunk, np.arange(first, first + len(chunk))):
            parts, at = found.setdefault(name, ([], []))
            parts.append(pa.Table.from_batches([_pa.RecordBatch.from_struct_array(rows)]))
            at.append(places)
        first += len(chunk)
    for name, (parts, at) in found.items():
        if len(parts) == 1:
            yield name, parts[0], at[0]
        else:
            yield name, pa.concat_tables(parts, promote_options="permissive"), np.concatenate(at)


def rows_by_branch(table: pa.Table) -> Iterable[tuple[str, pa.Table, Any]]:
    """Return the rows of each branch, and their places in `table`; all of them as "" without branches."""
    return branches(table) if is_tagged(table.schema) else [("", table, slice(None))]


def tagged_nbytes(table: pa.Table) -> int:
    """Return the size of tagged rows. Arrow counts the whole members for a slice of them."""
    return sum(map(_nbytes, table.column(0).chunks))


def _nbytes(rows: Any) -> int:
    """Return the size of the rows of a member, or of a union.

    Of each member as many rows count as the union has, from the first one on: a slice has no others.
    """
    if not pa.types.is_union(rows.type):
        return int(rows.nbytes)
    codes, offsets = _tags(rows)
    counts = np.bincount(codes) if rows.type.num_fields > 1 else np.array([len(codes)])
    size = _TAG_BYTES * len(rows)
    for code in np.flatnonzero(counts).tolist():
        first = int(offsets[np.argmax(codes == code)])
        size += _nbytes(rows.field(code).slice(first, int(counts[code])))
    return size


def join_tagged(tables: Sequence[pa.Table], join: Callable[[list[pa.Table]], pa.Table]) -> pa.Table:
    """Join tables of tagged rows, in order; `join`: joins the tables of one branch, in order."""
    rows: dict[str, list[pa.Table]] = {}
    order: dict[str, list[NDArray[np.int64]]] = {}
    first = 0
    for table in tables:
        for name, some, places in branches(table):
            rows.setdefault(name, []).append(some)
            order.setdefault(name, []).append(places + first)
        first += table.num_rows
    return tag(
        {name: join(some) for name, some in rows.items()},
        {name: np.concatenate(places) for name, places in order.items()},
    )


def schemas(schema: pa.Schema) -> dict[str, pa.Schema]:
    """Return the columns of each branch of tagged rows."""
    return dict(_schemas(schema.field(0).type))


def _schemas(union: Any) -> Iterator[tuple[str, pa.Schema]]:
    for at in range(union.num_fields):
        member = union.field(at)
        if pa.types.is_union(member.type):
            yield from _schemas(member.type)
        else:
            fields = [member.type.field(number) for number in range(member.type.num_fields)]
            yield member.name, pa.schema(fields)


def _struct(table: pa.Table) -> pa.Array[Any]:
    columns: list[Any] = [
        pa.concat_arrays(column.chunks) for column in table.combine_chunks().columns
    ]
    return pa.StructArray.from_arrays(columns, fields=list(table.schema))


def _union(
    members: Sequence[tuple[str, pa.Array[Any], NDArray[np.int64]]], rows: int
) -> pa.Array[Any]:
    if len(members) > _MOST_MEMBERS:
        size = -(-len(members) // _MOST_MEMBERS)
        groups = (members[at : at + size] for at in range(0, len(members), size))
        return _union([_group(group) for group in groups], rows)
    codes = np.empty(rows, dtype=np.int8)
    places = np.empty(rows, dtype=np.int32)
    for code, (_, _, order) in enumerate(members):
        codes[order] = code
        places[order] = np.arange(len(order), dtype=np.int32)
    names = [name for name, _, _ in members]
    arrays = [array for _, array, _ in members]
    union: pa.Array[Any] = _pa.UnionArray.from_dense(
        pa.array(codes), pa.array(places), arrays, names
    )
    return union


def _group(
    members: Sequence[tuple[str, pa.Array[Any], NDArray[np.int64]]],
) -> tuple[str, pa.Array[Any], NDArray[np.int64]]:
    """Join some members to one: a union of their rows, in the order of all rows."""
    order = np.sort(np.concatenate([each for _, _, each in members]))
    inner = [(name, array, np.searchsorted(order, each)) for name, array, each in members]
    return "", _union(inner, len(order)), order


def _members(
    union: Any, places: NDArray[np.int64]
) -> Iterator[tuple[str, pa.Array[Any], NDArray[np.int64]]]:
    codes, offsets = _tags(union)
    for code, ours in _rows_by_code(codes, union.type.num_fields):
        member = union.type.field(code)
        rows = _rows_at(union.field(code), offsets.take(ours))
        if pa.types.is_union(member.type):
            yield from _members(rows, places.take(ours))
        else:
            yield member.name, rows, places.take(ours)


def _rows_by_code(codes: NDArray[np.int8], members: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Return the number of each member that has rows, and the places of its rows."""
    if members == 1:
        by_code, ends = np.arange(len(codes)), [len(codes)]
    else:
        by_code = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes)).tolist()
    for code, (begin, end) in enumerate(pairwise([0, *ends])):
        if begin < end:
            yield code, by_code[begin:end]


def _tags(union: Any) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Return the number of the member that each row of a union is in, and its place there."""
    _, codes, offsets = union.buffers()[:3]  # `type_codes` of a slice would begin at its parent's
    own = slice(union.offset, union.offset + len(union))
    return np.frombuffer(codes, np.int8)[own], np.frombuffer(offsets, np.int32)[own]


def _rows_at(member: Any, at: NDArray[np.int32]) -> Any:
    """Return the rows at ascending places of a member: without a copy, if none lies between them."""
    first, count = int(at[0]), len(at)
    if int(at[-1]) - first == count - 1 and bool(np.all(at[1:] > at[:-1])):
        return member.slice(first, count)
    return member.take(pa.array(at))
