"""A log with damaged files returns only appended batches, or reports the damage."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmr.broker.log.disk_work import do_now
from kmr.broker.log.log_config import LogConfig
from kmr.broker.log.partition import PartitionLog
from kmr.broker.log.records import CODECS
from kmr.broker.log.results import Appended, LogCorrupt, OffsetNotInLog
from tests.examples import examples

Append = Callable[..., Appended]

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=200, retention_ms=-1)
BATCHES = 40
START = 4


class Written:
    """A log on disk, and the raw batch that holds each of its offsets."""

    def __init__(self, directory: Path, batch_of: list[bytes], *, closed: bool) -> None:
        self.directory = directory
        self.batch_of = batch_of
        self.closed = closed

    def first_offset_of(self, number: int) -> int:
        """First offset of the batch with this number; batches have 1, 2, 3, 1, 2, 3, ... records."""
        return sum(n % 3 + 1 for n in range(number))


@pytest.fixture(scope="module", params=["closed", "killed"])
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, append: Append
) -> Iterator[Written]:
    directory = tmp_path_factory.mktemp("log") / "t-0"
    log = PartitionLog.open(directory, CONFIG, clean=True)
    batch_of: list[bytes] = []
    for number in range(BATCHES):
        if number == BATCHES // 2:
            log.roll()
            log.fsync()
            do_now(log.truncation(START))
        count = number % 3 + 1
        append(
            log,
            [b"value of %d" % number] * count,
            timestamps=[1000 + number] * count,
            codec=list(CODECS)[number % len(CODECS)],
            producer=(1, 0, len(batch_of)),
        )
        batch_of += [bytes(log.read(log.next_offset - 1, 1, min_one=True).data)] * count
    if request.param == "closed":
        log.close()
    kept = Path(shutil.copytree(directory, directory.with_name("kept")))
    yield Written(kept, batch_of, closed=request.param == "closed")
    log.close()


def damage(data: st.DataObject, path: Path) -> None:
    content = bytearray(path.read_bytes())
    kind = data.draw(st.sampled_from(["flip", "flip", "flip", "cut", "zero", "grow", "missing"]))
    if kind == "missing":
        path.unlink()
        return
    position = data.draw(st.integers(min_value=0, max_value=max(0, len(content) - 1)))
    if kind == "flip" and content:
        content[position] ^= 1 << data.draw(st.integers(min_value=0, max_value=7))
    elif kind == "cut":
        del content[position:]
    elif kind == "zero":
        content[position:] = bytes(len(content) - position)
    else:
        content += data.draw(st.binary(max_size=100))
    path.write_bytes(content)


def shows_its_end(directory: Path, intact: Path, *, clean: bool) -> bool:
    """Whether the remaining files of a closed log show that it was longer, if it was.

    An index without its segment shows it after a clean stop only: a power loss may keep an index of a
    segment that was never on disk.
    """
    if (checkpoint := directory / "checkpoint").exists():
        return checkpoint.read_bytes() == (intact / "checkpoint").read_bytes()
    newest = directory / max(intact.glob("*.log")).name
    return clean and not newest.exists() and newest.with_suffix(".index").exists()


def test_missing_newest_segments_are_reported_even_without_a_checkpoint(
    written: Written, tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(written.directory, tmp_path / "t-0"))
    indexed = max(directory.glob("*.index")).stem
    for path in directory.glob("*.log"):
        if path.stem >= indexed:
            path.unlink()
    (directory / "checkpoint").unlink()
    log = PartitionLog.open(directory, CONFIG, clean=True)
    assert log.recovery.lost_durable_records > 0
    log.close()


def test_a_log_of_which_only_indexes_are_left_hands_out_no_offset_again(
    written: Written, append: Append, tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(written.directory, tmp_path / "t-0"))
    newest = max(int(path.stem) for path in directory.glob("*.index"))
    for path in [*directory.glob("*.log"), directory / "checkpoint"]:
        path.unlink(missing_ok=True)
    log = PartitionLog.open(directory, CONFIG, clean=True)
    assert log.recovery.lost_data
    assert append(log, [b"goes on"]).first_offset > newest
    log.close()


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data(), clean=st.booleans(), times=st.integers(min_value=1, max_value=3))
def test_a_damaged_log_returns_appended_batches_or_reports_the_damage(
    written: Written, append: Append, data: st.DataObject, times: int, *, clean: bool
) -> None:
    end = len(written.batch_of)
    with TemporaryDirectory() as name:
        directory = Path(shutil.copytree(written.directory, Path(name) / "t-0"))
        for _ in range(times):
            path = data.draw(st.sampled_from(sorted(directory.iterdir())))
            damage(data, path)
        shows_end = written.closed and shows_its_end(directory, written.directory, clean=clean)
        log = PartitionLog.open(directory, CONFIG, clean=clean)
        assert log.next_offset <= end
        if shows_end and log.next_offset < end:
            assert log.recovery.lost_data
        reported: list[Path] = []
        buffer = memoryview(bytearray(4000))
        for offset in range(log.log_start_offset, log.next_offset):
            try:
                span = log.read_into(offset, buffer)
            except LogCorrupt as error:
                reported.append(error.path)
                continue
            expected = [
                batch
                for inside, batch in enumerate(written.batch_of[: span.next_offset])
                if inside == offset
                or (inside > offset and batch is not written.batch_of[inside - 1])
            ]
            assert buffer[: span.size] == b"".join(expected)
        for number in (0, BATCHES // 3, BATCHES // 2, BATCHES - 1):
            at = max(log.log_start_offset, written.first_offset_of(number))
            expected_offset = at if at < log.next_offset else None
            try:
                found = do_now(log.search(1000 + number))
            except LogCorrupt as error:
                reported.append(error.path)
                continue
            assert (found and found[0]) == expected_offset
        assert {path.suffix for path in reported} <= {".log"}
        assert all(path.parent == directory for path in reported)
        with pytest.raises(OffsetNotInLog):
            log.read(log.next_offset + 1, 1, min_one=True)
        next_offset = log.next_offset
        assert append(log, [b"goes on"]).first_offset == next_offset
        assert log.read(next_offset, 1000, min_one=True).first_offset == next_offset
        log.close()
