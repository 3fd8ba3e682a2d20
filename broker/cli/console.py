"""`kmr broker console`: work with a cluster by typing commands, or from a pipe."""

from __future__ import annotations

import inspect
import shlex
import sys
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from anyio.from_thread import start_blocking_portal
from cyclopts import App, CycloptsError

from broker.cli.completion import completion
from broker.cli.connection import Connection
from broker.cli.console_commands import Commands
from broker.cli.errors import EXPECTED, UsageError, explain, reports
from broker.cli.session import open_session
from broker.cli.text import say

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from broker.cli.session import Session

__all__ = ["console"]

_LEAVE = ("exit", "quit")


@reports
def console(*, connection: Connection | None = None) -> None:
    """Type commands: topics, sending, subscribing, groups, polling. `help` lists them.

    Commands can also come from a pipe. An error is told and ends nothing; `exit` or the end of the
    input ends the console.
    """
    settings = (connection or Connection()).client_settings()
    # Heartbeats go on in the portal's thread while this one waits for a person.
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_session(settings)) as session,
    ):
        shell = Shell(portal, session)
        with completion(shell.words):
            if sys.stdin.isatty():
                say(f"connected to {settings['bootstrap_servers']}; `help` lists the commands")
            shell.run("kmr> " if sys.stdin.isatty() else "")


class Shell:
    """Reads lines, runs them, prints what comes of it."""

    def __init__(self, portal: BlockingPortal, session: Session) -> None:
        self._portal = portal
        self._session = session
        self._app = App(
            name="kmr>", help="Commands of the console.", usage="", help_flags=[], version_flags=[]
        )
        for command in Commands(session).all():
            self._app.command(command)
        self._app.command(self._help, name="help")
        self._app.command(_leave, name=_LEAVE)

    def run(self, prompt: str) -> None:
        """Run lines until the input ends or a command says so."""
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
        """Run one line; whatever is wrong with it is told."""
        try:
            tokens = shlex.split(line, comments=True)
            if tokens:
                self._run(tokens)
        except CycloptsError as error:
            say(f"error: {error}")
        except EXPECTED as error:
            say(f"error: {explain(error)}")
        except (ValueError, OSError, TimeoutError) as error:
            say(f"error: {str(error) or 'it took too long'}")
        except (KeyboardInterrupt, CancelledError):
            say("interrupted")
        news, self._session.news[:] = list(self._session.news), []
        say(*news)

    def words(self, before: list[str]) -> list[str]:
        """What can come after `before`, for completion."""
        if not before:
            return [name for name in self._app if not name.startswith("-")]
        if before[0] == "help":
            return self.words([])
        admin = self._session.admin
        try:
            if before[0] in ("group", "join"):
                return self._portal.call(admin.groups)
            return list(self._portal.call(admin.topics))
        except EXPECTED:
            return []

    def _run(self, tokens: list[str]) -> None:
        command, bound, _ = self._app.parse_args(tokens, exit_on_error=False, print_error=False)
        if not inspect.iscoroutinefunction(command):
            command(*bound.args, **bound.kwargs)
            return
        running = self._portal.start_task_soon(_call, command, bound)
        try:
            running.result()
        except KeyboardInterrupt:
            running.cancel()
            raise

    def _help(self, *command: str) -> None:
        """List the commands, or explain one."""
        if command and command[0] not in self._app:
            raise UsageError(f"there is no command {command[0]!r}")
        self._app.help_print(list(command))


async def _call(command: Any, bound: inspect.BoundArguments) -> Any:
    return await command(*bound.args, **bound.kwargs)


def _leave() -> None:
    """End the console."""
