"""Source distributions come by pip, once, and never unverified."""

from __future__ import annotations

import io
import tarfile
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from interop.cached import FetchFailed
from interop.sdists import LOCK, Sdist, fetch_sdist, locked, unpack

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "PKG-INFO": "Metadata-Version: 2.1\nName: some-thing\nVersion: 1.0\n",
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "b"\nbackend-path = ["."]\n',
    "b.py": """
from pathlib import Path

def prepare_metadata_for_build_wheel(directory, settings=None):
    info = Path(directory) / "some_thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: some-thing\\nVersion: 1.0\\n")
    return info.name
""",
    "test/test_thing.py": "theirs",
}
"""A package that needs nothing to tell its metadata, for which pip asks."""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def published(index: Path) -> Sdist:
    """A source distribution that is there."""
    archive = index / "some_thing-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for name, content in FILES.items():
            entry = tarfile.TarInfo(f"some_thing-1.0/{name}")
            entry.size = len(content.encode())
            packed.addfile(entry, io.BytesIO(content.encode()))
    return Sdist("some-thing", "1.0", sha256(archive.read_bytes()).hexdigest())


def test_a_source_distribution_is_fetched_once(
    published: Sdist, index: Path, tmp_path: Path
) -> None:
    archive = fetch_sdist(published, tmp_path / "cache")
    (index / archive.name).unlink()
    assert fetch_sdist(published, tmp_path / "cache") == archive
    source = unpack(archive, tmp_path / "unpacked")
    assert (source / "test" / "test_thing.py").read_text() == "theirs"


def test_one_that_is_damaged_in_the_cache_is_fetched_again(
    published: Sdist, tmp_path: Path
) -> None:
    archive = fetch_sdist(published, tmp_path / "cache")
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-1])
    assert fetch_sdist(published, tmp_path / "cache").read_bytes() == whole


def test_one_with_other_bytes_than_expected_is_refused_and_not_kept(
    published: Sdist, tmp_path: Path
) -> None:
    other = Sdist(published.name, published.version, "0" * 64)
    with pytest.raises(
        FetchFailed, match=r"some-thing==1\.0: sha256 .* differs from the lock file"
    ):
        fetch_sdist(other, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_an_index_that_does_not_have_it_is_named_as_the_reason(index: Path, tmp_path: Path) -> None:
    missing = Sdist("some-thing", "2.0", "0" * 64)
    with pytest.raises(
        FetchFailed, match=r"(?s)some-thing==2.0 cannot be fetched by pip.*PIP_INDEX_URL"
    ):
        fetch_sdist(missing, tmp_path / "cache")


def test_the_lock_file_says_version_and_hash_of_each() -> None:
    assert (
        locked("kafka-python").file_name == f"kafka_python-{locked('kafka-python').version}.tar.gz"
    )
    with pytest.raises(KeyError):
        locked("nobodys")
    for line in LOCK.read_text().splitlines():
        if not line.startswith("#"):
            assert len(Sdist.parse(line).sha256) == 64


@pytest.mark.parametrize("line", ["kafka-python==3.0", "kafka-python --hash=sha256:00", ""])
def test_a_line_without_version_or_hash_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not `name==version"):
        Sdist.parse(line)
