"""`kmr broker group`: list and describe consumer groups of any Kafka cluster."""

from __future__ import annotations

from cyclopts import App

from .client_command import ClientFlags, client_command, client_settings
from .cluster_admin import GroupInfo, open_admin
from .terminal import AsJson, columns, required, show

app = App(name="group")


@app.command(name="list")
@client_command
async def list_groups(*, as_json: AsJson = False, client: ClientFlags | None = None) -> None:
    """List the groups."""
    async with open_admin(client_settings(client)) as admin:
        groups = await admin.groups()
    show(groups, groups, as_json=as_json)


@app.command
@client_command
async def describe(
    *groups: str, as_json: AsJson = False, client: ClientFlags | None = None
) -> None:
    """Show the members of groups, their committed offsets, and their lag."""
    async with open_admin(client_settings(client)) as admin:
        described = [await admin.describe_group(name) for name in required(groups, "group")]
    lines = (line for group in described for line in show_group(group))
    show(described, lines, as_json=as_json)


def show_group(group: GroupInfo) -> list[str]:
    """Return a group's members, committed offsets and lag as lines of text."""
    lines = [f"{group.name}: {group.state}, {len(group.members)} members"]
    lines += [
        f"  {member.member_id} at {member.host}, {len(member.partitions)} partitions"
        for member in group.members
    ]
    owners = {tuple(tp): member.member_id for member in group.members for tp in member.partitions}
    offsets = {
        (each.topic, each.partition): (each.committed, each.end, max(each.end - each.committed, 0))
        for each in group.offsets
    }
    rows = [
        (*tp, *offsets.get(tp, ("-", "-", "-")), owners.get(tp, ""))
        for tp in sorted({*offsets, *owners})
    ]
    if rows:
        header = ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"]
        lines += columns(header, rows)
    return lines
