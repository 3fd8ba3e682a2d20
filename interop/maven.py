"""Jars from a Maven repository, as pinned in the lock file: verified by checksum, kept in a cache."""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING, Final, Self
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from interop.cached import FetchFailed, cached

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["CENTRAL", "REPOSITORY_VARIABLE", "Artifact", "FetchFailed", "fetch", "read_lock"]

CENTRAL: Final = "https://repo.maven.apache.org/maven2"
"""The public repository; `REPOSITORY_VARIABLE` names another one, a mirror say."""
REPOSITORY_VARIABLE: Final = "KMR_MAVEN_REPOSITORY"

_LINE: Final = re.compile(
    r"(?P<group>[\w.-]+):(?P<name>[\w.-]+):(?P<version>[\w.-]+) sha256:(?P<sha256>[0-9a-f]{64})"
)
_TIMEOUT: Final = 60.0  # seconds without a byte
_ATTEMPTS: Final = 3
_PAUSE: Final = 1.0  # seconds
_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Artifact:
    """One jar of a Maven repository: its coordinates, and the checksum of its bytes in hex."""

    group: str
    name: str
    version: str
    sha256: str

    @property
    def path(self) -> str:
        """Where a repository has it, relative to its root."""
        directory = f"{self.group.replace('.', '/')}/{self.name}/{self.version}"
        return f"{directory}/{self.name}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version} sha256:{self.sha256}"

    @classmethod
    def parse(cls, line: str) -> Self:
        """What `str` gave. Raises ValueError for anything else."""
        matched = _LINE.fullmatch(line.strip())
        if matched is None:
            raise ValueError(f"not `group:name:version sha256:...`: {line!r}")
        return cls(**matched.groupdict())


def read_lock(path: Path) -> list[Artifact]:
    """The artifacts of a lock file: one a line, comments begin with #."""
    lines = path.read_text().splitlines()
    return [Artifact.parse(line) for line in lines if line and not line.startswith("#")]


def fetch(
    artifacts: Sequence[Artifact], cache: Path, environ: Mapping[str, str] | None = None
) -> list[Path]:
    """The jars of these artifacts, in the same order; those that the cache lacks are fetched into it.

    Every jar is verified, also one that was in the cache: one that is damaged there is fetched again.

    Raises:
        FetchFailed: the repository cannot be reached, lacks a jar, or has other bytes than expected.
    """
    environ = os.environ if environ is None else environ
    repository = (environ.get(REPOSITORY_VARIABLE) or CENTRAL).rstrip("/")
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        jars = [threads.submit(_ensure, each, cache, repository) for each in artifacts]
        try:
            return [jar.result() for jar in jars]
        except FetchFailed:
            threads.shutdown(cancel_futures=True)  # the others would fail for the same reason
            raise


def _ensure(artifact: Artifact, cache: Path, repository: str) -> Path:
    url = f"{repository}/{artifact.path}"
    return cached(cache / artifact.path, artifact.sha256, url, partial(_download, url))


def _download(url: str) -> bytes:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with urlopen(url, timeout=_TIMEOUT) as response:  # noqa: S310  the user's own repository
                content: bytes = response.read()
                return content
        except HTTPError as error:
            error.close()
            if error.code < 500 or attempt == _ATTEMPTS:
                raise FetchFailed(f"{url}: HTTP {error.code} {error.reason}") from error
        except (HTTPException, OSError) as error:
            if attempt == _ATTEMPTS:
                reason = error.reason if isinstance(error, URLError) else error
                raise FetchFailed(
                    f"{url} cannot be reached: {reason}. The jars come from Maven Central; "
                    f"where that is out of reach, set {REPOSITORY_VARIABLE} to a mirror's URL"
                ) from error
        time.sleep(_PAUSE * attempt)
    raise AssertionError("not reached")
