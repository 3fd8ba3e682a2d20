"""Files that appear as a whole, on a local file system and in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from kmr.errors import StrategyError
from kmr.service.storage import Storage, open_storage, without_secrets

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


def _write(stream: pa.NativeFile) -> None:
    stream.write(b"whole")


def _fail_half_way(stream: pa.NativeFile) -> None:
    stream.write(b"ha")
    raise OSError("disk full")


def _names(storage: Storage) -> list[str]:
    found = storage.filesystem.get_file_info(fs.FileSelector(storage.root, allow_not_found=True))
    return sorted(info.base_name for info in found)


@pytest.fixture(params=["local", "object store"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return open_storage(str(tmp_path / "files"))
    fsspec = pytest.importorskip("fsspec")
    return open_storage(f"/{tmp_path.name}", fsspec.filesystem("memory"))


def test_a_file_replaces_an_older_one_of_its_name(storage: Storage) -> None:
    for _ in range(2):
        storage.put(storage.root, "a", _write)
    assert _names(storage) == ["a"]
    with storage.filesystem.open_input_file(f"{storage.root}/a") as file:
        assert file.read() == b"whole"


def test_a_file_that_cannot_be_written_leaves_nothing(storage: Storage) -> None:
    with pytest.raises(OSError, match="disk full"):
        storage.put(storage.root, "a", _fail_half_way)
    assert _names(storage) == []


def test_a_file_that_is_not_there_is_removed_without_an_error(storage: Storage) -> None:
    storage.put(storage.root, "a", _write)
    storage.remove(f"{storage.root}/a")
    storage.remove(f"{storage.root}/a")
    assert _names(storage) == []


def test_a_place_without_a_file_system_is_explained_without_its_secrets() -> None:
    with pytest.raises(StrategyError, match="cannot be opened from here") as refused:
        open_storage("nowhere://user:secret@host/files")
    assert "secret@" not in str(refused.value).partition("written from here")[0]
    assert without_secrets("s3://key:secret@bucket/a?token=x") == "s3://bucket/a"
