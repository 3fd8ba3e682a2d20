"""What commands share: options, output, errors in one line, exit codes."""

from __future__ import annotations

import functools
import os
import signal
import sys
import traceback
from base64 import b64encode
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import anyio
import msgspec
from cyclopts import Parameter

from ..errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

Arguments = ParamSpec("Arguments")
Name = TypeVar("Name", bound=str)

CLEAN, FAILED, USAGE = 0, 1, 2
"""Exit codes."""

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
AsJson = Annotated[bool, Parameter("--json", negative=(), show_default=False, help="Print JSON.")]
Texts = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]
"""An option that may be repeated."""


# -- how a command ends --------------------------------------------------------------------------


class CommandError(Exception):
    """A command failed; the message says what failed, why, and what to do."""


class UsageError(CommandError):
    """The command line is wrong."""


def runs(command: Callable[Arguments, Awaitable[int | None]]) -> Callable[Arguments, int]:
    """Make a command of an async function; see `reports`."""

    @functools.wraps(command)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> int | None:
        async def call() -> int | None:
            return await command(*args, **kwargs)

        return anyio.run(call)

    return reports(run)


def reports(command: Callable[Arguments, int | None]) -> Callable[Arguments, int]:
    """Make a command return its exit code and report a CommandError or BrokerError in one line.

    Exit codes: 0 clean, 1 failed, 2 wrong usage, 130 interrupted, 141 output closed. With `kmr --debug`
    or KMR_DEBUG=1 errors show their traceback.
    """

    @functools.wraps(command)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> int:
        try:
            return command(*args, **kwargs) or CLEAN
        except (CommandError, BrokerError) as error:
            if "--debug" in sys.argv or os.environ.get("KMR_DEBUG", "") not in ("", "0"):
                traceback.print_exc()
            complain(str(error))
            return USAGE if isinstance(error, UsageError) else FAILED
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except BrokenPipeError:
            # The reader of stdout is gone (`... | head`); the interpreter must not write again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE

    return run


def complain(message: str) -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"kmr broker: {message}\n")


# -- output --------------------------------------------------------------------------------------


def say(*lines: str) -> None:
    """Write lines to stdout."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def say_json(value: Any) -> None:
    """Write a value to stdout as JSON."""
    say(msgspec.json.format(msgspec.json.encode(value)).decode())


def show(value: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Write a value to stdout as JSON, or else as these lines."""
    if as_json:
        say_json(value)
    else:
        say(*lines)


def columns(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return lines with aligned columns; columns of numbers are flush right."""
    cells = [[str(cell) for cell in row] for row in rows]
    numeric = [
        all(row[at].lstrip("-").isdigit() or row[at] == "-" for row in cells)
        for at in range(len(header))
    ]
    table = [list(header), *cells]
    widths = [max(len(row[at]) for row in table) for at in range(len(header))]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in table
    ]


def text_or_base64(name: str, value: bytes | None) -> dict[str, str | None]:
    """Return a field for JSON; bytes that are not UTF-8 are in base64 as `NAME_base64`."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode()}


# -- input ---------------------------------------------------------------------------------------


def pairs(given: Iterable[str], what: str) -> dict[str, str]:
    """Parse `name=value` texts of the option `what`. Raises UsageError."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{what} {text!r}: expected name=value")
        found[name] = value
    return found


def required(names: tuple[Name, ...], what: str) -> tuple[Name, ...]:
    """Return `names`. Raises UsageError if there are none."""
    if not names:
        raise UsageError(f"name at least one {what}")
    return names
