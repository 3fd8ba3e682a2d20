"""The commands of the console, from a pipe."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.broker.cli.conftest import Kmr


def console(kmr: Kmr, *lines: str) -> list[str]:
    """Return the output of the console for these lines."""
    result = kmr("console", stdin="\n".join(lines).encode())
    assert (result.code, result.err) == (0, b"")
    return result.lines


def test_topics_are_created_written_and_read(kmr: Kmr) -> None:
    shown = console(
        kmr,
        "create orders --partitions 1",
        "send orders hello --key 1",
        "send orders 'two words' more --header a=b",
        "send orders --key 1 --null",
        "subscribe orders",
        "poll --format '{offset} {key} {value} {headers}\\n'",
        "poll --wait 0",
        "seek 1",
        "poll --max 1",
        "unsubscribe",
        "delete orders",
    )
    assert shown == [
        "orders: created",
        "orders:0:0",
        "orders:0:1",
        "orders:0:2",
        "orders:0:3",
        "reading orders, in no group",
        "TOPIC   PARTITION  NEXT",
        "orders          0     0",
        "0 1 hello ",
        "1  two words a=b",
        "2  more a=b",
        "3 1  ",
        "no new records",
        "reading orders, in no group",
        "TOPIC   PARTITION  NEXT",
        "orders          0     1",
        "orders:0:1\t\ttwo words\ta=b",
        "nothing is subscribed",
        "orders: deleted",
    ]


def test_a_value_may_have_a_number_sign(kmr: Kmr) -> None:
    shown = console(
        kmr,
        *("create marks", "send marks a#b '#c' #d", "  # a comment", "subscribe marks"),
        "poll --format value",
    )
    assert shown[-3:] == ["a#b", "#c", "#d"]


def test_a_group_commits_the_records_that_were_shown(kmr: Kmr) -> None:
    console(kmr, "create jobs", "send jobs 1 2 3")
    first = console(kmr, "subscribe jobs", "join team", "poll --max 2 --format value", "leave")
    assert "reading jobs, in group team" in first
    assert "assigned partitions: jobs:0" in first
    assert first[first.index("1") + 1 :][:2] == ["2", "reading jobs, in no group"]

    second = console(kmr, "subscribe jobs", "join team", "poll --format value", "group team")

    assert "1" not in second
    assert second[second.index("3") + 1] == "team: Stable, 1 members"
    assert second[-1].split()[:5] == ["jobs", "0", "3", "3", "0"]
    assert "team" in console(kmr, "groups")


def test_subscriptions_add_up_and_keep_their_positions(kmr: Kmr) -> None:
    console(kmr, "create left", "create right", "send left 1", "send right 2")
    shown = console(
        kmr,
        "subscribe left",
        "poll --format value",
        "subscribe right --from-end",
        "send right 3",
        "poll --format value",
        "unsubscribe left",
    )
    assert shown[3] == "1"
    assert ["left", "0", "1"] in [line.split() for line in shown]
    assert "3" in shown
    assert "2" not in shown
    assert shown[-3] == "reading right, in no group"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "error: Unknown command"),
        ("create", "error: "),
        ("create a b c", "error: "),
        ("send there", "error: nothing to send"),
        ("send missing x", "error: topic missing: does not exist"),
        ("send there x --partition 9", "error: topic there has no partition 9: it has 1"),
        ("subscribe missing", "error: topic missing: does not exist"),
        ("subscribe", "error: name at least one topic"),
        ("unsubscribe there", "error: topic there: not subscribed"),
        ("poll", "error: subscribe to a topic first"),
        ("poll --format x", "error: --format"),
        ("poll --wait long", "error: "),
        ("join team", "error: subscribe to a topic first"),
        ("leave", "error: in no group"),
        ("seek 5", "error: no partitions assigned"),
        ("describe missing", "error: topic missing: does not exist"),
        ("group missing", "error: group missing: does not exist"),
        ("send there 'no end", "error: No closing quotation"),
        ("help nonsense", "error: unknown command 'nonsense'"),
    ],
)
def test_the_console_continues_after_an_error(kmr: Kmr, line: str, message: str) -> None:
    kmr("topic", "create", "there", "--if-not-exists")
    shown = console(kmr, line, "", "# a comment", "topics", "exit", "nonsense")
    assert shown[0].startswith(message)
    assert shown[1].split() == ["TOPIC", "PARTITIONS"]
    assert not any("nonsense" in each for each in shown[1:])


def test_every_command_has_a_help_text(kmr: Kmr) -> None:
    overview = "\n".join(console(kmr, "help"))
    commands = re.findall(r"^│ (\w+)", overview, re.MULTILINE)
    assert {"topics", "create", "delete", "send", "subscribe", "unsubscribe"} < set(commands)
    assert {"join", "leave", "poll", "groups", "group", "describe", "help"} < set(commands)
    for command in commands:
        explained = console(kmr, f"help {command}")
        assert explained[0].startswith(f"Usage: kmr> {command}")
        assert explained[2].strip()
