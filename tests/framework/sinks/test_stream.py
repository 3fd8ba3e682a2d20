"""StreamWriter: rows as lines of JSON, on the standard streams, in files, in other streams."""

from __future__ import annotations

import copy
import io
import os
import pickle
import resource
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kmr.errors import SinkError, StrategyError
from kmr.record import Range, Rows
from kmr.reducers.reducer import Context, Retry
from kmr.reducers.sink import RowsRefused
from kmr.sinks.stream import StreamWriter

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT = Context(group="g", stage="reduce-err")


def rows_of(table: pa.Table | None = None, **columns: Any) -> Rows:
    return Rows(table if table is not None else pa.table(columns), (Range("t", 0, 0, 9),))


def test_rows_of_all_batches_become_one_line_each() -> None:
    stream = io.StringIO()
    writer = StreamWriter(stream)
    writer.add(rows_of(a=[1, 2]))
    writer.add(rows_of(b=["x\ny"]))
    writer.flush()
    assert stream.getvalue().splitlines() == [
        '{"a":1,"b":null}',
        '{"a":2,"b":null}',
        '{"a":null,"b":"x\\ny"}',
    ]


@pytest.mark.parametrize(("takes", "written"), [(True, '{"a":1.5}\n'), (False, "")])
async def test_where_nothing_takes_what_is_refused_nothing_is_written_that_would_be_written_again(
    takes: bool, written: str
) -> None:
    stream = io.StringIO()
    writer = StreamWriter(stream)
    await writer.open(CONTEXT.with_sinks(takes_refused=takes))
    writer.add(rows_of(a=[1.5, float("nan")]))
    with pytest.raises(RowsRefused):
        writer.flush()
    assert stream.getvalue() == written


def test_pretty_is_indented_for_people() -> None:
    stream = io.StringIO()
    writer = StreamWriter(stream, format="pretty")
    writer.add(rows_of(a=[1]))
    writer.flush()
    assert stream.getvalue() == '{\n  "a": 1\n}\n'


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_standard_stream_is_kept_by_name_and_can_be_pickled(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for writer in (StreamWriter(getattr(sys, name)), StreamWriter(name)):
        travelled: StreamWriter = pickle.loads(pickle.dumps(copy.deepcopy(writer)))
        travelled.add(rows_of(a=["é"]))
        travelled.flush()
        assert getattr(capsys.readouterr(), name[3:]) == '{"a":"é"}\n'


def test_copies_write_to_the_same_stream_but_collect_apart() -> None:
    stream = io.StringIO()
    writer = StreamWriter(stream, max_age=0.5)
    writer.add(rows_of(a=[1]))
    other = copy.deepcopy(writer)
    other.add(rows_of(a=[2]))
    other.flush()
    writer.flush()
    assert stream.getvalue() == '{"a":2}\n{"a":1}\n'
    assert other.max_age == 0.5


async def test_a_file_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "errors.jsonl"
    path.write_text("before\n")
    writer = StreamWriter(path)
    await writer.open(CONTEXT)
    writer.add(rows_of(a=[1]))
    writer.flush()
    assert path.read_text() == 'before\n{"a":1}\n'


async def test_a_file_that_cannot_be_written_is_refused_at_start(tmp_path: Path) -> None:
    writer = StreamWriter(str(tmp_path / "absent" / "errors.jsonl"))
    with pytest.raises(StrategyError, match=r"reduce-err: cannot write to .*: No such file"):
        await writer.open(CONTEXT)


def test_a_full_disk_is_retried() -> None:
    writer = StreamWriter("/dev/full")
    writer.add(rows_of(a=[1]))
    with pytest.raises(Retry, match="cannot write to /dev/full: No space left on device") as caught:
        writer.flush()
    assert not caught.value.may_double


def test_a_write_that_stops_half_way_leaves_no_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "errors.jsonl"
    path.write_text("before\n")
    writer = StreamWriter(path)
    writer.add(rows_of(a=list(range(100))))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
    try:
        with pytest.raises(Retry, match=f"cannot write to {path}: File too large") as caught:
            writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not caught.value.may_double
    assert path.read_text() == "before\n"
    writer.flush()
    assert len(path.read_text().splitlines()) == 101


def test_a_broken_pipe_is_a_clear_error() -> None:
    reader, end = os.pipe()
    os.close(reader)
    with os.fdopen(end, "w") as stream:
        writer = StreamWriter(stream)
        writer.add(rows_of(a=[1]))
        with pytest.raises(SinkError, match=r"StreamWriter: cannot write to .*Broken pipe"):
            writer.flush()
        # The rest in the buffer of the stream cannot be written either.
        with pytest.raises(BrokenPipeError):
            stream.buffer.close()


def test_a_value_that_is_not_a_stream_is_refused() -> None:
    with pytest.raises(StrategyError, match="5 is neither a text stream nor a path"):
        StreamWriter(5)  # type: ignore[arg-type]
    with pytest.raises(StrategyError, match="format must be"):
        StreamWriter("stderr", format="xml")  # type: ignore[arg-type]
