"""`kmr cutover`: put the table of a new version in the place of the old one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter
from rich.filesize import decimal
from rich.text import Text

from ..config.flags import Given, settings_flags
from ..config.schema import show_count
from ..history.cutover import exchange_of, stand, wait
from ..loading import load_strategy
from ..observe.logs import setup_logs
from ..settings import GROUP, GroupSettings, LogSettings
from .output import plain_console, plain_table

if TYPE_CHECKING:
    from ..history.cutover import CutoverStanding
    from ..sinks.exchanging import TableFacts


@settings_flags(GROUP, without=("topics", "topic_pattern"))
def cutover(
    strategy: str,
    /,
    *,
    given: Given[GroupSettings],
    replaces: str,
    old_group: str,
    await_: Annotated[bool, Parameter("--await", negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Exchange the table of a new version of a strategy with the one that readers use.

    The new version has a table beside the old one, and a group of its own: fill it with kmr backfill and
    kmr run. Both versions may run while the tables are exchanged: the exchange is one step, and each worker
    goes on to write to its own table, under its new name. The old table is kept, under the new one's name.
    A failure before the exchange changes nothing; run the same command again.

    For example:

        kmr cutover hits2:strategy --group web2 --replaces hits --old-group web --dry-run
        kmr cutover hits2:strategy --group web2 --replaces hits --old-group web --await

    Parameters
    ----------
    strategy
        The new version: module:attribute. The current directory is searched first.
    replaces
        The table that readers use; its name becomes that of the new table.
    old_group
        The consumer group of the old version.
    await_
        Wait until the backfill is complete, and the new version has what the old one had ten seconds ago.
    dry_run
        Print the plan; change nothing.
    """
    settings = given.load()
    setup_logs(LogSettings())
    loaded = load_strategy(strategy)
    loaded.validate()
    exchange = exchange_of(loaded, replaces, settings.group, old_group)
    console = plain_console()
    new, old = anyio.run(exchange.look)
    if new.name == old.name:
        console.print(f"{old.name} is the table of group {settings.group} already: nothing to do")
        return 0
    standing = anyio.run(stand, settings, old_group)
    _show(new, old, settings.group, old_group, standing)
    if dry_run:
        for statement in anyio.run(exchange.statements):
            console.print(f"  {statement};")
        console.print("dry run: nothing was changed")
        return 0
    if await_:
        standing = anyio.run(wait, settings, old_group)
    else:
        standing.refuse(settings.group)
    anyio.run(exchange.run)
    behind = sum(standing.behind().values())
    console.print(
        f"exchanged: {old.name} has the rows of group {settings.group}, "
        f"{show_count(behind, 'offset')} behind group {old_group}; {new.name} has the rows of "
        f"group {old_group}"
    )
    console.print(
        f"workers of both groups go on. Write {old.name} in {strategy} for its next start, and keep its "
        f"group; stop those of group {old_group} when you do not need the old version any more"
    )
    return 0


def _show(
    new: TableFacts, old: TableFacts, group: str, old_group: str, standing: CutoverStanding
) -> None:
    console = plain_console()
    table = plain_table(
        "Table", "Group", "Becomes", "Rows", "Bytes", left=("Table", "Group", "Becomes")
    )
    for each, of, other in ((new, group, old), (old, old_group, new)):
        table.add_row(
            Text(each.name),
            Text(of),
            Text(other.name),
            "-" if each.rows is None else f"{each.rows:,}",
            "-" if each.size is None else decimal(each.size),
        )
    console.print(table)
    behind = standing.behind()
    console.print(
        f"group {group} is {show_count(sum(behind.values()), 'offset')} behind group {old_group}"
        + (f" in {show_count(len(behind), 'partition')}" if behind else "")
    )
    if standing.history_left:
        console.print(f"its backfill has {show_count(standing.history_left, 'offset')} left")
    elif not standing.has_history:
        console.print(
            "it has no backfill: its table has what its workers have read since they began"
        )
    if not standing.members:
        console.print(f"group {group} has no members: its table stands still until a worker starts")
    if lost := [name for name in old.columns if name not in new.columns]:
        console.print(f"readers lose the columns {', '.join(lost)}")
