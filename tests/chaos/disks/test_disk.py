"""The disk that forgets: its journal, and its files after a power loss."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from chaos.disks.disk import Disk, Sync
from chaos.disks.power_loss import (
    EVERYTHING,
    NAMES_ONLY,
    NOTHING,
    Chance,
    Luck,
    Tree,
    read_tree,
    survivors,
    write_tree,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


def left(disk: Disk, luck: Luck, at: int | None = None) -> Tree:
    return survivors(disk.journal, disk.now if at is None else at, disk.base, luck)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def test_every_way_to_change_a_file_is_taken_down(root: Path, tmp_path: Path) -> None:
    with Disk(root) as disk:
        (root / "d" / "e").mkdir(parents=True)
        (root / "d" / "whole").write_bytes(b"abc")
        descriptor = os.open(root / "d" / "e" / "pieces", os.O_RDWR | os.O_CREAT)
        os.pwritev(descriptor, [b"12", b"34"], 2)
        copy = os.dup(descriptor)
        os.pwrite(copy, b"5", 6)
        os.ftruncate(descriptor, 9)
        os.close(copy)
        os.close(descriptor)
        (root / "d" / "whole").rename(root / "moved")
        (root / "moved").replace(root / "d" / "again")
        with os.fdopen(os.open(root / "f", os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(b"by descriptor")
        os.truncate(root / "f", 2)
        (root / "gone").touch()
        (root / "gone").unlink()
        shutil.copytree(root / "d", root / "tree", copy_function=_copy)
        shutil.rmtree(root / "tree")
        (tmp_path / "elsewhere").write_bytes(b"not below the root")
    assert read_tree(root) == {
        "d": {"again": b"abc", "e": {"pieces": b"\0\x001234" + b"5\0\0"}},
        "f": b"by",
    }
    assert left(disk, EVERYTHING) == read_tree(root)
    assert left(disk, NOTHING) == {}
    (tmp_path / "again").mkdir()
    write_tree(left(disk, EVERYTHING), tmp_path / "again")
    assert read_tree(tmp_path / "again") == read_tree(root)


def _copy(source: str, target: str) -> None:
    Path(target).write_bytes(Path(source).read_bytes())


def test_a_file_needs_a_sync_of_its_content_and_one_of_its_name(root: Path) -> None:
    with Disk(root) as disk:
        (root / "a").write_bytes(b"1")
        (root / "b").write_bytes(b"2")
        sync(root / "a")
        assert left(disk, NOTHING) == {}
        assert left(disk, NAMES_ONLY) == {"a": b"1", "b": b""}
        sync(root)
        assert left(disk, NOTHING) == {"a": b"1", "b": b""}
        (root / "a").write_bytes(b"3")
        (root / "b").unlink()
        (root / "c").touch()
        assert left(disk, NOTHING) == {"a": b"1", "b": b""}
        assert left(disk, EVERYTHING) == {"a": b"3", "c": b""}


def test_a_move_is_there_whole_or_not_at_all(root: Path) -> None:
    with Disk(root) as disk:
        for name in ("from", "into"):
            (root / name).mkdir()
        (root / "from" / "file").touch()
        sync(root / "from")
        sync(root)
        (root / "from" / "file").rename(root / "into" / "file")
        before, after = {"from": {"file": b""}, "into": {}}, {"from": {}, "into": {"file": b""}}
        assert left(disk, NOTHING) == before
        for seed in range(50):
            assert left(disk, Chance(seed)) in (before, after)
        sync(root / "into")
        assert left(disk, NOTHING) == after


def test_a_sync_covers_writes_from_before_it_began(root: Path) -> None:
    with Disk(root) as disk:
        (root / "a").write_bytes(b"1")
        sync(root / "a")
        sync(root)
        with (root / "a").open("wb") as file:
            file.write(b"2")
    (first, _) = [each for each in disk.journal if isinstance(each, Sync)]
    assert first.until == 2
    assert left(disk, NOTHING) == {"a": b"1"}


def test_chance_keeps_synced_bytes_and_some_sectors_and_zeros(root: Path) -> None:
    with Disk(root) as disk:
        descriptor = os.open(root / "a", os.O_RDWR | os.O_CREAT)
        os.pwrite(descriptor, b"s" * 700, 0)
        os.fsync(descriptor)
        os.pwrite(descriptor, b"u" * 5000, 700)
        os.close(descriptor)
        sync(root)
    contents = [left(disk, Chance(seed))["a"] for seed in range(50)]
    assert left(disk, Chance(7)) == left(disk, Chance(7))
    assert len({bytes(each) for each in contents if isinstance(each, bytes)}) > 20
    for content in contents:
        assert isinstance(content, bytes)
        assert content.startswith(b"s" * 700)
        assert set(content[700:]) <= set(b"u\0")


def test_a_refused_operation_changes_nothing(root: Path) -> None:
    with Disk(root) as disk:
        (root / "a").write_bytes(b"1")
        disk.refuse(lambda kind, path: errno.ENOSPC if kind in ("write", "make") else 0)
        with pytest.raises(OSError, match="No space left"):
            (root / "b").touch()
        descriptor = os.open(root / "a", os.O_RDWR)
        with pytest.raises(OSError, match="No space left"):
            os.pwrite(descriptor, b"2", 0)
        os.close(descriptor)
        (root / "a").rename(root / "c")
        assert read_tree(root) == left(disk, EVERYTHING) == {"c": b"1"}


def test_what_a_failed_sync_leaves_in_memory_never_gets_to_the_disk(root: Path) -> None:
    with Disk(root) as disk:
        descriptor = os.open(root / "a", os.O_RDWR | os.O_CREAT)
        sync(root)
        os.pwrite(descriptor, b"12", 0)
        disk.refuse(lambda kind, _: errno.EIO if kind == "sync" else 0)
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(descriptor)
        disk.refuse(None)
        os.fsync(descriptor)
        assert (root / "a").read_bytes() == b"12"
        assert left(disk, NOTHING) == {"a": b""}
        os.pwrite(descriptor, b"12", 0)
        os.fsync(descriptor)
        assert left(disk, NOTHING) == {"a": b"12"}
        os.close(descriptor)


def test_a_directory_in_use_is_no_disk(root: Path) -> None:
    (root / "a").touch()
    with pytest.raises(ValueError, match="is not empty"):
        Disk(root)
