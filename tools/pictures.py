"""Make the pictures of the live page and of `kmr top` in docs/assets/, from a real run of the demo.

    .venv/bin/python tools/pictures.py

It needs Chromium, and the extra [top]. The pictures are in git; make them anew when the page or the view
changes.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio

from kmr.cli.top import Watch
from kmr.cli.top_app import TopApp

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "docs" / "assets"
WATCH = re.compile(r"watch worker-2 in a browser while it runs: (http://\S+)")


def main() -> None:
    """Run the demo until some seconds after its producer has begun, take the pictures, and stop it."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("pictures: there is no chromium; install it")
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-m", "demo"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            text=True,
        ) as demo,
    ):
        assert demo.stdout is not None
        url = next(found[1] for line in demo.stdout if (found := WATCH.search(line)))
        time.sleep(3)  # the figures of a rate need some
        page = str(ASSETS / "page.png")
        subprocess.run(
            [
                *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--virtual-time-budget=4000", "--window-size=1100,760"),
                *(f"--screenshot={page}", url),
            ],
            check=True,
            capture_output=True,
        )
        anyio.run(picture_of_top, url)
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
    sys.stdout.write(f"{page}\n{ASSETS / 'top.svg'}\n")


async def picture_of_top(url: str) -> None:
    """Save what `kmr top` shows after some refreshes."""
    top = TopApp(Watch(url), 0.5)
    top.title = "kmr top"
    async with top.run_test(size=(120, 34)):
        await anyio.sleep(4)
        top.save_screenshot("top.svg", path=str(ASSETS))


if __name__ == "__main__":
    main()
