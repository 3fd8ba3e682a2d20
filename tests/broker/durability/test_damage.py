"""Files that a disk or a person has damaged: recovered, refused or reported; never silently wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from chaos.disks.disk import Disk
from chaos.disks.power_loss import EVERYTHING, survivors, write_tree
from kmr.broker.errors import BrokerError

if TYPE_CHECKING:
    from pathlib import Path

Moments = Callable[[int, int], range]


def _flip(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def _zero(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    start = random.randrange(len(data))
    data[start : start + 512] = bytes(len(data[start : start + 512]))
    path.write_bytes(data)


def _cut(path: Path, random: Random) -> None:
    path.write_bytes(path.read_bytes()[: random.randrange(path.stat().st_size)])


def _lengthen(path: Path, random: Random) -> None:
    path.write_bytes(path.read_bytes() + random.randbytes(random.randrange(1, 600)))


def _remove(path: Path, _: Random) -> None:
    path.unlink()


DAMAGES = (_flip, _zero, _cut, _lengthen, _remove)
NEVER_MISSED = {"lock", "clean"}
"""Files of no content."""


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
async def test_a_damaged_file_is_made_up_for_or_somebody_is_told(
    tools: Any, root: Path, tmp_path: Path, moments: Moments, clean: bool
) -> None:
    with Disk(root) as disk:
        history = await tools.work(disk, rounds=1)
        at = disk.now
        async with tools.broker(root, "always") as broker:
            client = await tools.connect(broker)
            expected = await tools.look(client)
            await client.close()
            if not clean:
                at = disk.now
    assert history.records
    tree = survivors(disk.journal, at, disk.base, EVERYTHING)
    intact = tmp_path / "intact"
    intact.mkdir()
    write_tree(tree, intact)
    paths = [path.relative_to(intact) for path in sorted(intact.rglob("*")) if path.is_file()]
    cases = [
        (path, damage)
        for path in paths
        for damage in DAMAGES
        if path.name not in NEVER_MISSED and (intact / path).stat().st_size
        # After a kill a log may have had no checkpoint yet.
        if clean or (path.name, damage) != ("checkpoint", _remove)
    ]
    for number in moments(len(cases) - 1, 13):
        path, damage = cases[number]
        damaged = tmp_path / "damaged"
        shutil.copytree(intact, damaged)
        damage(damaged / path, Random(number))
        noticed = await start_and_look(tools, damaged, history, expected)
        assert noticed, f"{damage.__name__} of {path} went unnoticed"
        shutil.rmtree(damaged)


async def start_and_look(tools: Any, root: Path, history: Any, expected: Any) -> bool:
    """Whether everything is there, or the operator or a client gets an error."""
    same = False
    with capture_logs() as logs:
        try:
            async with tools.broker(root, "always") as broker:
                client = await tools.connect(broker)
                try:
                    same = await tools.look(client) == expected
                    for answer in history.newest_answers(history.disk.now):
                        same = same and await answer.comes_again(client)
                finally:
                    await client.close()
        except BrokerError as error:
            return str(root) in str(error)
        except LookupError:
            return True
    return same or any(each["log_level"] in ("warning", "error") for each in logs)
