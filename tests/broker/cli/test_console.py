"""The console: from a pipe, and on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kmr.broker.cli.console import completer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.broker.cli.conftest import Kmr

RUN = [sys.executable, "-c", "from kmr.broker.cli import app; app()", "console"]


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
        "orders:0:1\t\ttwo words",
        "nothing is subscribed",
        "orders: deleted",
    ]


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


def test_a_broker_that_is_not_there_is_one_line(kmr: Kmr) -> None:
    result = kmr("console", "--bootstrap-servers", "127.0.0.1:1")
    assert result.code == 1
    assert result.err.startswith(b"kmr broker: no Kafka broker answers")


def test_completion_offers_what_fits_the_beginning() -> None:
    typed = ""

    def words(before: list[str]) -> list[str]:
        return ["topics", "create", "delete"] if not before else ["orders", "other"]

    complete = completer(words, lambda: typed)

    def offered(line: str) -> list[str]:
        nonlocal typed
        typed = line
        text = "" if line.endswith(" ") else (line.split() or [""])[-1]
        found: list[str] = []
        while (match := complete(text, len(found))) is not None:
            found.append(match)
        return found

    assert offered("") == ["create ", "delete ", "topics "]
    assert offered("de") == ["delete "]
    assert offered("delete o") == ["orders ", "other "]
    assert offered("delete or") == ["orders "]
    assert offered("delete x") == []


class Terminal:
    """A console on a pseudo terminal."""

    def __init__(self, servers: str, home: Path) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [*RUN, "--bootstrap-servers", servers],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb", "XDG_STATE_HOME": str(home)},
        )
        os.close(slave)
        self._seen = b""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> None:
        """Read until `text` appears, and forget everything up to it."""
        while text.encode() not in self._seen:
            self._seen += os.read(self._master, 4096)
        self._forget(text)

    def interrupt_until(self, text: str) -> None:
        """Press Ctrl-C until `text` appears: one that comes just before readline listens is not seen."""
        self.process.send_signal(signal.SIGINT)
        while text.encode() not in self._seen:
            if select.select([self._master], [], [], 2)[0]:
                self._seen += os.read(self._master, 4096)
            else:
                self.process.send_signal(signal.SIGINT)
        self._forget(text)

    def _forget(self, text: str) -> None:
        self._seen = self._seen.partition(text.encode())[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(servers: str, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(servers, tmp_path)
    yield terminal
    terminal.close()


def test_on_a_terminal_there_is_a_prompt_completion_and_history(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.wait_for("kmr> ")
    terminal.type("crea\tfrom-terminal\n")
    terminal.wait_for("from-terminal: created")
    terminal.wait_for("kmr> ")
    terminal.type("describe from-t\t\n")
    terminal.wait_for("from-terminal: 1 partitions")
    terminal.wait_for("kmr> ")
    terminal.interrupt_until("kmr> ")
    terminal.type("\x04")
    assert terminal.process.wait(timeout=20) == 0
    history = (tmp_path / "kmr" / "console_history").read_text()
    assert "create from-terminal" in history
