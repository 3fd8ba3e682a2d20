"""A page in a real browser: Chromium without a window, which reaches this machine only."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CHROMIUM", "Visit", "visit"]

CHROMIUM: Final = shutil.which("chromium") or shutil.which("google-chrome")
"""The program; None where there is none."""

_FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--enable-logging=stderr"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_PATIENCE: Final = 120.0


@dataclass(frozen=True)
class Visit:
    """What a page was after some seconds.

    Attributes:
        document: its HTML, as scripts have made it.
        console: its messages and errors.
    """

    document: str
    console: list[str]


def visit(
    url: str,
    picture: Path,
    *,
    size: tuple[int, int] = (1280, 1500),
    seconds: float = 4.0,
) -> Visit:
    """Open a page, take a picture of it, and return what is in it.

    Args:
        picture: the PNG to write.
        size: of the window, in pixels.
        seconds: of the page's time, which passes faster than real time while the page waits.

    Raises:
        subprocess.CalledProcessError: Chromium failed.
    """
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        ended = subprocess.run(
            [
                *(CHROMIUM, *_FLAGS, f"--user-data-dir={profile}"),
                f"--window-size={size[0]},{size[1]}",
                f"--virtual-time-budget={round(seconds * 1000)}",
                *(f"--screenshot={picture}", "--dump-dom", url),
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
        )
    console = [line for line in ended.stderr.splitlines() if ":CONSOLE" in line]
    return Visit(ended.stdout, console)
