"""A broker whose disk loses unsynced data at any moment: all acknowledgements hold.

Real clients work on a broker; the disk takes down every change to its files (`chaos.disks`). Then, for
one moment after the other, a broker is started on the files that a crash at this moment leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from chaos.disks.disk import Disk
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


Moments = Callable[[int, int], range]


def crashes(disk: Disk, moments: Iterable[int], luck: Luck | None) -> Iterator[tuple[int, Tree]]:
    """Moments and the files that a crash leaves then; of equal ones only the last.

    `luck`: without it, each moment has its own.
    """
    found: tuple[int, Tree] | None = None
    for at in moments:
        tree = survivors(disk.journal, at, disk.base, luck or _luck(at))
        if found is not None and found[1] != tree:
            yield found
        found = at, tree
    if found is not None:
        yield found


def _luck(at: int) -> Luck:
    return (NOTHING, Chance(at), NAMES_ONLY, EVERYTHING)[at % 4]


async def audit(
    tools: Any, history: Any, crashed: Iterable[tuple[int, Tree]], where: Path, **options: Any
) -> int:
    """Have a broker started on each; returns how many there were."""
    count = 0
    for at, tree in crashed:
        left = where / f"{count}"
        left.mkdir()
        write_tree(tree, left)
        try:
            await tools.audit(left, history, at, **options)
        except Exception as error:
            error.add_note(
                f"after a crash before operation {at}: {history.disk.journal[at : at + 1]}"
            )
            raise
        count += 1
    return count


@pytest.mark.slow
@pytest.mark.parametrize("part", ["records", "transactions", "groups", "topics"])
async def test_a_power_loss_at_any_operation_takes_back_nothing_that_was_acknowledged(
    tools: Any, root: Path, tmp_path: Path, moments: Moments, part: str
) -> None:
    with Disk(root) as disk:
        history = await tools.work(disk, parts=[part], rounds=1)
    crashed = crashes(disk, moments(disk.now, 1), NOTHING)
    assert await audit(tools, history, crashed, tmp_path, durable=True) > 10


@pytest.mark.slow
@pytest.mark.parametrize("part", ["records", "transactions", "groups", "topics"])
async def test_a_kill_at_any_operation_takes_back_nothing_that_was_acknowledged(
    tools: Any, root: Path, tmp_path: Path, moments: Moments, part: str
) -> None:
    with Disk(root) as disk:
        history = await tools.work(disk, parts=[part], rounds=1)
    crashed = crashes(disk, moments(disk.now, 9), EVERYTHING)
    assert await audit(tools, history, crashed, tmp_path, durable=True) > 10


@pytest.mark.slow
async def test_acknowledged_work_of_all_clients_survives_any_power_loss(
    tools: Any, root: Path, tmp_path: Path, moments: Moments
) -> None:
    with Disk(root) as disk:
        history = await tools.work(disk)
    assert survivors(disk.journal, disk.now, disk.base, EVERYTHING) == read_tree(root)
    crashed = crashes(disk, moments(disk.now, 53), None)
    assert await audit(tools, history, crashed, tmp_path, durable=True) > 10


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["interval", "os"])
async def test_without_a_sync_a_power_loss_leaves_a_prefix_of_the_sent_records(
    tools: Any, root: Path, tmp_path: Path, moments: Moments, fsync: str
) -> None:
    with Disk(root) as disk:
        history = await tools.work(disk, fsync, fsync_interval=0.01)
    crashed = crashes(disk, moments(disk.now, 113), None)
    assert await audit(tools, history, crashed, tmp_path, fsync=fsync, durable=False) > 10


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["interval", "os"])
async def test_without_a_sync_a_kill_takes_back_nothing_that_was_acknowledged(
    tools: Any, root: Path, tmp_path: Path, moments: Moments, fsync: str
) -> None:
    with Disk(root) as disk:
        history = await tools.work(disk, fsync, fsync_interval=0.01)
    crashed = crashes(disk, moments(disk.now, 127), EVERYTHING)
    assert await audit(tools, history, crashed, tmp_path, fsync=fsync, durable=True) > 10


@pytest.mark.slow
async def test_a_crash_during_the_recovery_from_a_crash_takes_back_nothing(
    tools: Any, root: Path, tmp_path: Path, moments: Moments
) -> None:
    with Disk(root) as disk:
        history = await tools.work(disk)
    for number, (at, tree) in enumerate(crashes(disk, moments(disk.now, 601), None)):
        again = tmp_path / f"again-{number}"
        again.mkdir()
        with Disk(again) as second:
            write_tree(tree, again)
            second.sync_all()
            begin = second.now
            async with tools.broker(again, "always"):
                pass
        where = tmp_path / f"left-{number}"
        where.mkdir()
        later = crashes(second, range(begin, second.now + 1, 5), NOTHING)
        crashed = ((at, left) for _, left in later)
        await audit(tools, history, crashed, where, durable=True)


async def test_a_disk_that_only_claims_to_sync_is_noticed(
    tools: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Disk, "_fsync", lambda *_: None)
    with Disk(root) as disk:
        history = await tools.work(disk, parts=["groups"], rounds=1)
    (tmp_path / "left").mkdir()
    with pytest.raises(AssertionError):
        await tools.audit(tmp_path / "left", history, disk.now, durable=True)
