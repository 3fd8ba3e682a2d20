"""`kmr broker console`: work with a cluster interactively, or with commands from a pipe."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from anyio.from_thread import start_blocking_portal
from cyclopts import App, CycloptsError

from .client_command import ClientFlags, client_settings, explained
from .console_session import open_session
from .terminal import CommandError, UsageError, reports, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anyio.from_thread import BlockingPortal

    from .console_session import Session

_HISTORY_LINES = 1000


@contextmanager
def completion(words: Callable[[list[str]], list[str]]) -> Iterator[None]:
    """Complete words with `words(before)` on a terminal, and keep the history in a file."""
    try:
        import readline
    except ImportError:  # not on every platform
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    readline.set_completer_delims(" \t\n")
    readline.set_completer(completer(words, readline.get_line_buffer))
    readline.parse_and_bind("tab: complete")
    history = _history_file()
    with suppress(OSError):
        history.parent.mkdir(parents=True, exist_ok=True)
        readline.read_history_file(history)
    try:
        yield
    finally:
        readline.set_completer(None)
        readline.set_history_length(_HISTORY_LINES)
        with suppress(OSError):
            readline.write_history_file(history)


def completer(
    words: Callable[[list[str]], list[str]], line: Callable[[], str]
) -> Callable[[str, int], str | None]:
    """Return a completion function for readline, which calls it with 0, 1, 2 ... until None."""
    matches: list[str] = []

    def complete(text: str, state: int) -> str | None:
        nonlocal matches
        if state == 0:
            typed = line()
            before = typed[: len(typed) - len(text)].split()
            matches = [f"{word} " for word in sorted(words(before)) if word.startswith(text)]
        return matches[state] if state < len(matches) else None

    return complete


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "kmr" / "console_history"


_LEAVE = ("exit", "quit")


@reports
def console(*, client: ClientFlags | None = None) -> None:
    """Run commands for topics, records and groups interactively; the command `help` lists them.

    Commands can also come from a pipe. The console continues after an error; the command `exit` or the
    end of the input ends it.
    """
    settings = client_settings(client)
    # The portal's thread sends heartbeats while this one waits for input.
    with (
        explained(),
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_session(settings)) as session,
    ):
        shell = Shell(portal, session)
        with completion(shell.words):
            if sys.stdin.isatty():
                say(f"connected to {settings['bootstrap_servers']}; `help` lists the commands")
            shell.run("kmr> " if sys.stdin.isatty() else "")


class Shell:
    """Reads lines, runs them as commands, and prints results and errors."""

    def __init__(self, portal: BlockingPortal, session: Session) -> None:
        self._portal = portal
        self._session = session
        self._app = App(
            name="kmr>", help="Commands of the console.", usage="", help_flags=[], version_flags=[]
        )
        for command in session.commands():
            self._app.command(command)
        self._app.command(self._help, name="help")
        self._app.command(_leave, name=_LEAVE)

    def run(self, prompt: str) -> None:
        """Run lines until the end of the input or `exit`."""
        while True:
            try:
                line = input(prompt)
            except EOFError:
                if prompt:
                    say("")
                return
            except KeyboardInterrupt:
                say("")
                continue
            if line.strip() in _LEAVE:
                return
            self.run_line(line)

    def run_line(self, line: str) -> None:
        """Run one line, and print its errors."""
        try:
            tokens = shlex.split(line)
            if tokens and not tokens[0].startswith("#"):
                with explained():
                    self._run(tokens)
        except (CycloptsError, CommandError, ValueError, OSError) as error:
            say(f"error: {str(error) or 'it took too long'}")
        except (KeyboardInterrupt, CancelledError):
            say("interrupted")
        news, self._session.news[:] = list(self._session.news), []
        say(*news)

    def words(self, before: list[str]) -> list[str]:
        """Return the completions after the words `before`."""
        if not before:
            return [name for name in self._app if not name.startswith("-")]
        if before[0] == "help":
            return self.words([])
        admin = self._session.admin
        try:
            with explained():
                if before[0] in ("group", "join"):
                    return self._portal.call(admin.groups)
                return list(self._portal.call(admin.topics))
        except CommandError:
            return []

    def _run(self, tokens: list[str]) -> None:
        command, bound, _ = self._app.parse_args(tokens, exit_on_error=False, print_error=False)
        if not inspect.iscoroutinefunction(command):
            command(*bound.args, **bound.kwargs)
            return
        running = self._portal.start_task_soon(partial(command, *bound.args, **bound.kwargs))
        try:
            running.result()
        except KeyboardInterrupt:
            running.cancel()
            raise

    def _help(self, *command: str) -> None:
        """List the commands, or explain one."""
        if command and command[0] not in self._app:
            raise UsageError(f"unknown command {command[0]!r}")
        self._app.help_print(list(command))


def _leave() -> None:
    """End the console."""
