"""ParquetWriter: which files it writes, what kills leave, and file systems that are not local."""

from __future__ import annotations

import copy
import os
import pickle
from itertools import count
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from kmr.delivery.announcement import Announcement
from kmr.errors import Escaped, RecordFailed, StrategyError
from kmr.record import Range, Rows, TopicPartition
from kmr.reducers.reducer import Retry
from kmr.reducers.sink import Write
from kmr.sinks import ParquetWriter
from kmr.sinks.parquet.files import NULL_PARTITION, Directory

from ...flushes import Flushed, outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kmr.reducers.reducer import Context

NAME = "g~t~0~{:019d}-{:019d}"


def rows(first: int, last: int, **columns: Any) -> Rows:
    offsets = np.arange(first, last + 1)
    table = pa.table({"offset": offsets, **columns})
    return Rows(table, (Range("t", 0, first, last),), offsets)


async def opened(url: object, context: Context, **options: Any) -> ParquetWriter:
    writer = copy.deepcopy(ParquetWriter(str(url), **options))
    await writer.open(context)
    return writer


async def flush(
    writer: ParquetWriter, added: Rows, *, replayed: bool = False, generation: int = 0
) -> Flushed | Retry:
    """One round of calls for an announced range."""
    writer.reset()
    writer.add(added)
    of = added.ranges[0]
    token = f"g:t:0:{of.first}-{of.last}"
    announced = Announcement(of.first, of.last, token, "w", generation=generation)
    return await outcome(writer, Write(announced, repeated=replayed))


def offsets_in(directory: Path) -> list[Any]:
    """The rows as any reader of a directory of Parquet files finds them."""
    return sorted(
        o for path in found(directory) for o in pq.ParquetFile(path).read()["offset"].to_pylist()
    )


def found(directory: Path) -> list[Path]:
    return sorted(directory.rglob("[!_.]*.parquet"))


def files_in(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


async def test_a_range_is_a_file_and_a_reset_of_the_offsets_makes_another(
    tmp_path: Path, context: Context
) -> None:
    writer = await opened(tmp_path, context)
    assert await flush(writer, rows(0, 4)) == Flushed()
    assert await flush(writer, rows(0, 4), generation=7) == Flushed()
    assert files_in(tmp_path) == [NAME.format(0, 4) + ".parquet", NAME.format(0, 4) + "~7.parquet"]
    assert offsets_in(tmp_path) == sorted([*range(5)] * 2)


class Killed(BaseException):
    """Ends a flush as kill -9 would: nothing is cleaned up."""


STEPS = ("create_dir", "open_output_stream", "sync", "rename")


@pytest.mark.parametrize("partition_by", [(), ("day",)])
async def test_a_kill_at_any_step_loses_and_doubles_nothing(
    tmp_path: Path, context: Context, monkeypatch: pytest.MonkeyPatch, partition_by: tuple[str, ...]
) -> None:
    """The process dies before each step in turn, and after the last one; the next owner writes again."""
    days = {"day": ["mon", "tue", "mon", "tue", "mon"]} if partition_by else {}
    steps = 0
    for fatal in count():
        target = tmp_path / str(fatal)
        clock = count()

        def step(call: Callable[..., Any], clock: Any = clock, fatal: int = fatal) -> Any:
            def counted(*arguments: Any, **options: Any) -> Any:
                if next(clock) == fatal:
                    raise Killed
                return call(*arguments, **options)

            return counted

        writer = await opened(target, context, partition_by=partition_by)
        killed = False
        with monkeypatch.context() as patch:
            for name in ("sync", "rename", "put"):
                patch.setattr(Directory, name, step(getattr(Directory, name)))
            patch.setattr(Directory, "remove", lambda *_: None)
            patch.setattr(pq, "write_table", step(pq.write_table))
            try:
                await flush(writer, rows(0, 4, **days))
            except Escaped:
                killed = True
        assert set(offsets_in(target)) <= set(range(5))
        heir = await opened(target, context, partition_by=partition_by)
        assert await flush(heir, rows(0, 4, **days), replayed=True) == Flushed()
        assert offsets_in(target) == list(range(5)), "one file of several is not the range"
        late = await opened(target, context, partition_by=partition_by)  # was suspended meanwhile
        late._proven.add(TopicPartition("t", 0))
        assert await flush(late, rows(0, 4, **days)) == Flushed()
        assert offsets_in(target) == list(range(5))
        steps += 1
        if not killed:
            break
    assert steps == (11 if partition_by else 6)


async def test_rows_that_do_not_fit_fail_again_when_their_range_is_there_already(
    tmp_path: Path, context: Context
) -> None:
    """The first file had other columns than the next owner knows: what was refused stays refused."""
    schema = pa.schema({"offset": pa.int64(), "n": pa.int64()})
    writer = await opened(tmp_path, context, schema=schema)
    first = await flush(writer, rows(0, 2, n=["1", "x", "3"]))
    text = pa.table({"offset": [0], "n": [""]}).schema
    again = await flush(
        await opened(tmp_path, context, schema=text), rows(0, 2, n=["1", "x", "3"]), replayed=True
    )
    for result in (first, again):
        assert isinstance(result, Flushed)
        assert [(p.rows.ranges, p.reason) for p in result.refusals] == [
            ((Range("t", 0, 1, 1),), "column n (int64) cannot hold 'x'")
        ]
    assert offsets_in(tmp_path) == [0, 2]


async def test_without_reduce_err_a_range_with_a_refused_row_waits_as_a_whole(
    tmp_path: Path, context: Context
) -> None:
    """The worker ends; where the columns are mended, all rows are written, not those that are left."""
    strict = context.with_sinks(takes_refused=False)
    added = rows(0, 2, n=["1", "x", "3"])
    numbers = await opened(
        tmp_path, strict, schema=pa.schema({"offset": pa.int64(), "n": pa.int64()})
    )
    with pytest.raises(RecordFailed, match=r"t-0\[1\.\.1\] in .*cannot hold 'x'; set reduce_err="):
        await flush(numbers, added)
    assert offsets_in(tmp_path) == []
    text = pa.table({"offset": [0], "n": [""]}).schema
    mended = await opened(tmp_path, strict, schema=text)
    assert await flush(mended, added, replayed=True) == Flushed()
    assert offsets_in(tmp_path) == [0, 1, 2]


async def test_columns_are_those_that_are_declared_else_those_of_a_file(
    tmp_path: Path, context: Context
) -> None:
    declared = context.with_sinks(schema_of=lambda _: pa.schema({"offset": pa.int32()}))
    await flush(await opened(tmp_path, declared), rows(0, 4))
    await flush(await opened(tmp_path, context), rows(5, 9))
    assert {pq.read_schema(p).field("offset").type for p in found(tmp_path)} == {pa.int32()}


@pytest.mark.parametrize("given", [True, False])
async def test_on_an_object_store_of_fsspec_a_file_is_one_put(
    context: Context, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    memory = fsspec.filesystem("memory")
    puts: list[str] = []
    store = type(memory).pipe_file

    def put(self: Any, path: str, value: bytes) -> None:
        puts.append(path)
        store(self, path, value)

    monkeypatch.setattr(type(memory), "pipe_file", put)
    where = f"/bucket-{given}/hits"
    url, options = (where, {"filesystem": memory}) if given else (f"memory:/{where}", {})
    writer = await opened(url, context, **options)
    await flush(writer, rows(0, 4))
    heir = await opened(url, context, **options)
    assert await flush(heir, rows(0, 4), replayed=True) == Flushed()
    assert puts == [f"{where}/{NAME.format(0, 4)}.parquet"]
    assert memory.find(where) == puts
    with memory.open(puts[0]) as file:
        assert pq.read_table(file)["offset"].to_pylist() == list(range(5))


async def test_a_failing_file_system_is_tried_again_without_doubles(
    tmp_path: Path, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await opened(tmp_path, context)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "rename", full)
        result = await flush(writer, rows(0, 4))
    assert isinstance(result, Retry)
    assert not result.may_double
    assert "No space left" in result.reason
    assert await outcome(writer) == Flushed()
    assert offsets_in(tmp_path) == list(range(5))
    assert files_in(tmp_path) == [NAME.format(0, 4) + ".parquet"]


async def test_what_cannot_be_written_to_is_said_at_the_start_without_secrets(
    context: Context,
) -> None:
    with pytest.raises(StrategyError, match=f"reduce-1: cannot write to {__file__}/x: .*Create"):
        await opened(f"{__file__}/x", context)
    with pytest.raises(StrategyError, match="nosuch://host/x cannot be opened from here") as raised:
        await opened("nosuch://user:hunter2@host/x?secret=hunter2", context)
    assert "hunter2" not in str(raised.value).partition(" from here")[0]
    with pytest.raises(StrategyError, match="compression must be"):
        ParquetWriter("x", compression="zip")  # type: ignore[arg-type]


async def test_a_broken_file_that_would_show_the_columns_is_named(
    tmp_path: Path, context: Context
) -> None:
    (tmp_path / "a.parquet").touch()
    with pytest.raises(StrategyError, match=r"a file in .* cannot be read: .* set schema="):
        await opened(tmp_path, context)


async def test_a_declared_type_that_parquet_lacks_is_named_at_the_start(
    tmp_path: Path, context: Context
) -> None:
    schema = pa.schema([("v", pa.sparse_union([pa.field("n", pa.int8())]))])
    with pytest.raises(
        StrategyError, match=r"column v of .*: Parquet has no type for sparse_union"
    ):
        await opened(tmp_path, context, schema=schema)


async def test_a_first_row_that_cannot_be_partitioned_is_refused_and_fixes_no_type(
    tmp_path: Path, context: Context
) -> None:
    writer = await opened(tmp_path, context, partition_by="k")
    odd_rows: list[dict[str, Any]] = [{}, {"k": [1.5]}, {"k": [[1]]}]
    for first, odd in enumerate(odd_rows):
        flushed = await flush(writer, rows(first, first, **odd))
        assert isinstance(flushed, Flushed)
        assert "column k" in str(flushed.refusals[0].reason)
    assert await flush(writer, rows(3, 3, k=[None])) == Flushed()
    assert await flush(writer, rows(4, 5, k=["a", None])) == Flushed()
    assert offsets_in(tmp_path) == [3, 4, 5]
    with pytest.raises(StrategyError, match="all of the last 200 rows were refused"):
        await flush(await opened(tmp_path, context, partition_by="x"), rows(6, 205))


async def test_each_value_of_a_partition_column_has_a_directory_or_its_row_is_refused(
    tmp_path: Path, context: Context
) -> None:
    writer = await opened(tmp_path, context, partition_by=["day", "name"])
    days = pa.array([0, 12_000_000, -4_000_000, 0, 0, 0, 0], pa.int32()).cast(pa.date32())
    names = pa.array(["a", "b", "c", "x" * 300, "", NULL_PARTITION, None])
    flushed = await flush(writer, rows(0, 6, day=days, name=names))
    assert isinstance(flushed, Flushed)
    ((rows_refused, reasons),) = [(r.rows, r.reason) for r in flushed.refusals]
    assert rows_refused.table["offset"].to_pylist() == [3, 4, 5]
    assert "column name: 'xxx" in reasons[0]
    assert "too long for the name of a directory (255 bytes)" in reasons[0]
    assert "'' is read as null" in reasons[1]
    assert {path.rpartition("/")[0] for path in files_in(tmp_path)} == {
        "day=1970-01-01/name=a",
        "day=+34824-11-19/name=b",
        "day=-8982-05-17/name=c",
        f"day=1970-01-01/name={NULL_PARTITION}",
    }
    again = await flush(writer, rows(0, 6, day=days, name=names), replayed=True)
    assert isinstance(again, Flushed)
    assert offsets_in(tmp_path) == [0, 1, 2, 6]


def test_a_writer_can_be_pickled_before_it_is_opened(tmp_path: Path) -> None:
    writer = ParquetWriter(tmp_path, filesystem=fs.LocalFileSystem(), partition_by="day")
    again = pickle.loads(pickle.dumps(writer))
    assert (again.url, again.partition_by, again.capabilities.delivery) == (
        os.fspath(tmp_path),
        ("day",),
        "exactly-once",
    )
    assert (
        again.capabilities.on_spark
        == "exactly once, by one file per range of offsets; in the driver, per micro-batch"
    )


async def test_only_one_of_the_files_of_a_range_has_the_reasons_of_refused_rows(
    tmp_path: Path, context: Context
) -> None:
    schema = pa.table({"day": ["x"], "n": pa.array([1], pa.int8())}).schema
    writer = await opened(tmp_path, context, partition_by="day", schema=schema)
    days = [f"{at % 20:02d}" for at in range(200)]
    added = rows(0, 199, day=days, n=[300 if at % 3 else 1 for at in range(200)])
    first = await flush(writer, added)
    assert isinstance(first, Flushed)
    assert len(found(tmp_path)) == 20
    noted = [b"kmr.refused" in (pq.read_schema(path).metadata or {}) for path in found(tmp_path)]
    assert noted == [True] + [False] * 19
    again = await flush(writer, added, replayed=True)
    assert isinstance(again, Flushed)
    assert [each.reason for each in again.refusals] == [each.reason for each in first.refusals]


async def test_rows_of_a_partition_whose_path_cannot_be_written_are_refused_and_others_are_written(
    tmp_path: Path, context: Context
) -> None:
    (tmp_path / "p=a").touch()  # where its directory goes
    writer = await opened(tmp_path, context, partition_by=["p", *(f"q{n}" for n in range(20))])
    long = {f"q{n}": ["x", "x", "x" * 240, "x"] for n in range(20)}
    added = rows(0, 3, p=["a", "b", "c", "d"], **long)
    for _ in range(6):
        assert isinstance(await flush(writer, added), Retry)
    result = await flush(writer, added)
    assert isinstance(result, Flushed)
    assert offsets_in(tmp_path) == [1, 3]
    reasons = [each.reason for each in result.refusals]
    assert "Not a directory" in reasons[0][0]
    assert "each of 6 attempts" in reasons[0][1]
    for _ in range(12):  # no other row is written: the disk may be the reason
        assert isinstance(
            await flush(writer, rows(4, 4, p=["a"], **{f"q{n}": ["x"] for n in range(20)})), Retry
        )


@pytest.mark.parametrize("name", ["..", ".p", "[0]", "a.b"])
async def test_a_partition_column_may_have_any_name_and_be_a_dictionary(
    tmp_path: Path, context: Context, name: str
) -> None:
    writer = await opened(tmp_path, context, partition_by=name)
    values = pa.array(["x", "", "x"]).dictionary_encode()
    result = await flush(writer, rows(0, 2, **{name: values}))
    assert isinstance(result, Flushed)
    assert [each.rows.ranges[0].first for each in result.refusals] == [1]
    assert offsets_in(tmp_path) == [0, 2]
    assert [path.parent.name for path in found(tmp_path)] == [
        f"{name.replace('[', '%5B').replace(']', '%5D')}=x"
    ]


async def test_a_number_with_digits_behind_the_point_refuses_no_whole_one_of_a_partition_column(
    tmp_path: Path, context: Context
) -> None:
    writer = await opened(tmp_path, context, partition_by="shard")
    flushed = await flush(writer, rows(0, 2, shard=[2.0, 1.5, None]))
    assert isinstance(flushed, Flushed)
    ((refused, reasons),) = [(r.rows, r.reason) for r in flushed.refusals]
    assert refused.table["offset"].to_pylist() == [1]
    assert "column shard (int64) cannot hold 1.5" in str(reasons)
    assert {path.parent.name for path in found(tmp_path)} == {"shard=2", f"shard={NULL_PARTITION}"}


async def test_a_new_worker_knows_the_columns_of_the_newest_file_and_of_its_partition(
    tmp_path: Path, context: Context
) -> None:
    writer = await opened(tmp_path, context, partition_by="shard")
    await flush(writer, rows(0, 0, shard=[9]))
    await flush(writer, rows(1, 1, shard=[1], ms=[0.5]))
    os.utime(tmp_path / "shard=9", (1, 1))
    again = await opened(tmp_path, context, partition_by="shard")
    flushed = await flush(again, rows(2, 3, shard=["1", "x"], ms=[7, 8]))
    assert isinstance(flushed, Flushed)
    assert ["shard" in str(each.reason) for each in flushed.refusals] == [True]
    (newest,) = (path for path in found(tmp_path) if path.name.startswith(NAME.format(2, 3)))
    assert pq.ParquetFile(newest).schema_arrow.field("ms").type == pa.float64()
