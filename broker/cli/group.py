"""`kmr broker group`: list and describe consumer groups of any Kafka cluster."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from broker.cli.admin import GroupInfo, open_admin
from broker.cli.connection import Connection
from broker.cli.errors import runs
from broker.cli.text import required, say, say_json, show_group

__all__ = ["app"]

app = App(name="group", help="List and describe consumer groups.")

Json = Annotated[bool, Parameter("--json", negative=(), show_default=False, help="Print JSON.")]


@app.command(name="list")
@runs
async def list_groups(*, as_json: Json = False, connection: Connection | None = None) -> None:
    """List the groups."""
    async with open_admin((connection or Connection()).client_settings()) as admin:
        groups = await admin.groups()
    if as_json:
        say_json(groups)
    else:
        say(*groups)


@app.command
@runs
async def describe(
    *groups: str, as_json: Json = False, connection: Connection | None = None
) -> None:
    """Show the members of groups, what they have committed, and how far they are behind."""
    async with open_admin((connection or Connection()).client_settings()) as admin:
        described = [await admin.describe_group(name) for name in required(groups, "group")]
    if as_json:
        say_json([_plain(group) for group in described])
    else:
        for group in described:
            say(*show_group(group))


def _plain(group: GroupInfo) -> dict[str, object]:
    return {
        "name": group.name,
        "state": group.state,
        "protocol": group.protocol,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions": [list(tp) for tp in member.assignment],
            }
            for member in group.members
        ],
        "offsets": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "committed": offset,
                "end": group.ends.get(tp),
            }
            for tp, offset in group.committed.items()
        ],
    }
