"""Make the pictures of the live page and of `kmr top` in docs/assets/, from a real run.

    .venv/bin/python -m tools.pictures

Two workers under one command write to ClickHouse for two and a half minutes. One of them is killed, and
ClickHouse stands still for a while: the pictures show what an operator sees then. It needs Chromium.
The pictures are in git; make them anew when the page or the view changes.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from functools import partial
from io import StringIO
from pathlib import Path
from random import Random
from typing import Final

import anyio
from anyio import to_thread
from rich.console import Console

from chaos.history import Recorder
from chaos.shape import GroupSpec, Outside, Shape
from chaos.site import Site
from chaos.together import KillOneOfMany
from chaos.workload import Workload
from kmr.cli.top import StatusPoller, screen
from tools.browser import CHROMIUM, visit

ASSETS: Final = Path(__file__).parents[1] / "docs" / "assets"
SHAPE: Final = Shape(
    [GroupSpec("hits", Workload("hits", dead_topic="hits-dead", max_age=1.0), together=True)],
    rate=4_000,
    poison_every=40_000,
    sample_every=60,  # so that the workers have a port
)
STEADY: Final = 45.0
STILL: Final = 12.0


async def main() -> None:
    """Run the workers, harm them, take the pictures."""
    if CHROMIUM is None:
        sys.exit("pictures: there is no chromium: tools/debian chromium")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        async with Site(SHAPE, Outside(), Path(folder), Recorder()) as site:
            url = f"http://127.0.0.1:{site.workers[0].service.http_port}"
            finished = site.start_load(7)
            await anyio.sleep(STEADY)
            await KillOneOfMany().strike(site, Random(1))
            await anyio.sleep(STEADY)
            assert site.clickhouse is not None
            site.clickhouse.pause()
            await anyio.sleep(STILL)
            site.clickhouse.resume()
            await anyio.sleep(STEADY)
            await picture_of_top(url)
            picture = ASSETS / "page.png"
            await to_thread.run_sync(partial(visit, url, picture, size=(1180, 1300)))
            site.load.stop()
            await finished.wait()
            await site.stop_workers()
    sys.stdout.write(f"{picture}\n{ASSETS / 'top.svg'}\n")


async def picture_of_top(url: str) -> None:
    """Save what `kmr top` shows."""
    view = await to_thread.run_sync(StatusPoller(url).look_twice, 4.0)
    console = Console(record=True, width=120, highlight=False, emoji=False, file=StringIO())
    console.print(screen(view))
    console.save_svg(str(ASSETS / "top.svg"), title="kmr top")


if __name__ == "__main__":
    anyio.run(main)
