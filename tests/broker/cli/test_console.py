"""The console on a terminal: prompt, completion, history."""

from __future__ import annotations

import os
import pty
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
    assert terminal.process.wait(timeout=60) == 0
    history = (tmp_path / "kmr" / "console_history").read_text()
    assert "create from-terminal" in history
