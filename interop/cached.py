"""Files that come from elsewhere, kept in the user's cache; every one is verified each time it is used."""

from __future__ import annotations

import tempfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FetchFailed", "cached"]


class FetchFailed(Exception):
    """A file could not be had; the message says which, from where, why, and what to do."""


def cached(path: Path, expected: str, origin: str, fetch: Callable[[], bytes]) -> Path:
    """The path of a file with these bytes; a file that is missing or damaged is fetched.

    Args:
        path: where it is kept.
        expected: the SHA-256 of its bytes, in hex.
        origin: where it comes from, for messages.
        fetch: returns its bytes.

    Raises:
        FetchFailed: the checksum differs; the bytes are discarded. Also the errors of `fetch`.
    """
    if path.is_file() and sha256(path.read_bytes()).hexdigest() == expected:
        return path
    content = fetch()
    found = sha256(content).hexdigest()
    if found != expected:
        raise FetchFailed(
            f"{origin}: sha256 {found} differs from the lock file's {expected}; "
            "nothing of it was kept. Either the repository is not to be trusted, or the lock file is wrong"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as fresh:
        fresh.write(content)
    Path(fresh.name).replace(path)  # another process may be doing the same
    return path
