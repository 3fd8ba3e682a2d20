"""The root of the `kmr` command: its groups, its errors, its exit codes.

Groups are entry points in `kmr.commands`: a cyclopts `App`, or a function. Only the group on the command
line is imported: `kmr --help` is fast, and a group that is broken or lacks a library breaks no other.
"""

from __future__ import annotations

import ast
import difflib
import gc
import importlib.util
import os
import re
import signal
import sys
import traceback
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

from cyclopts import App, CycloptsError, Parameter
from cyclopts.exceptions import UnusedCliTokensError
from cyclopts.help import ColumnSpec, DefaultFormatter, NameRenderer
from cyclopts.help.specs import AsteriskColumn, DescriptionColumn

from ..errors import KmrError, SettingsError
from .output import plain_console

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cyclopts.help import HelpEntry
    from rich.console import Console, ConsoleOptions

GROUP: Final = "kmr.commands"
DISTRIBUTION: Final = "kafka-map-reduce"

CLEAN: Final = 0
FAILED: Final = 1
USAGE: Final = 2

_HELP: Final = "Consume Kafka topics by map-reduce in plain Python: batches, backpressure, no loss."
_DEBUG: Final = "KMR_DEBUG"
_ALL: Final = "--help-all"
_UNKNOWN_FLAG: Final = re.compile(r'Unknown (?:option:|command) "?(-[^" .]+)')
_OWN_NAME: Final = re.compile(r"^`kmr [\w -]+`:\s*")


def main() -> NoReturn:
    """Run the command line of this process and exit.

    Exit codes: 0 clean, 1 failed, 2 wrong usage or settings, 3 deadline exceeded; 130 and 143 when a
    second SIGINT or SIGTERM cut a drain short.
    """
    sys.exit(run_command(sys.argv[1:], entry_points(group=GROUP)))


def run_command(arguments: Sequence[str], groups: Iterable[EntryPoint]) -> int:
    """Run one command line, load the group that it names, and return the exit code."""
    # Searched before parsing, for errors that occur while parsing.
    debug = "--debug" in arguments or os.environ.get(_DEBUG, "") not in ("", "0")
    try:
        with _no_collections():
            app = _app(arguments, {group.name: group for group in groups})
        tokens = ["--help" if argument == _ALL else argument for argument in arguments]
        result = app.meta(
            tokens, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except UnusedCliTokensError as error:
        unknown = " ".join(error.unused_tokens or ())
        _print_error(f"too many arguments: {unknown}; --help shows those that there are")
        return USAGE
    except CycloptsError as error:
        _print_error(_with_help(str(error)))
        return USAGE
    except KmrError as error:
        if debug:
            traceback.print_exc()
        _print_error(str(error))
        return USAGE if isinstance(error, SettingsError) else FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of our output is gone (`kmr ... | head`): keep the interpreter from flushing to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return result if isinstance(result, int) else CLEAN


def _shortened(command: Any, *, is_short: bool) -> Any:
    """Return a command whose help is short, or whole; of a group of commands, each of them."""
    from ..config.flags import shortened

    if not isinstance(command, App):
        return shortened(command, is_short=is_short)
    if command.default_command is not None:
        command.default_command = shortened(command.default_command, is_short=is_short)
    for inner in command.subapps:
        _shortened(inner, is_short=is_short)
    return command


def _columns(
    console: Console, options: ConsoleOptions, entries: list[HelpEntry]
) -> tuple[ColumnSpec, ...]:
    """Return the columns of a table of flags: that of the names breaks none of them."""
    del options  # a builder of cyclopts has this argument
    names = [name for entry in entries for name in " ".join(entry.display_labels).split()]
    longest = max(map(len, names), default=0)
    renderer = NameRenderer(max(console.width * 35 // 100, longest + 2))
    name = ColumnSpec(renderer=renderer, style="cyclopts.name", min_width=longest)
    required = (AsteriskColumn,) if any(entry.required for entry in entries) else ()
    return *required, name, DescriptionColumn


def _with_help(message: str) -> str:
    """Suggest --help where an unknown flag is nearest to it."""
    found = _UNKNOWN_FLAG.search(message)
    if found is None or not difflib.get_close_matches(found[1], ["--help"], 1, 0.7):
        return message
    return f"Unknown option: {found[1]}. Did you mean --help?"


def _app(arguments: Sequence[str], groups: dict[str, EntryPoint]) -> App:
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    # The list of groups is plain text: a Markdown parser would take a third of the time to show it.
    help_format: Final = "plaintext" if chosen is None else None
    app = App(
        name="kmr",
        help=_HELP,
        version=lambda: version(DISTRIBUTION),
        help_format=help_format,
        help_formatter=DefaultFormatter(column_specs=_columns),
    )
    app.suppress_keyboard_interrupt = app.meta.suppress_keyboard_interrupt = False

    @app.meta.default
    def launch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        debug: Annotated[
            bool,
            Parameter(
                negative=(), show_default=False, help="Show the traceback of errors (KMR_DEBUG=1)."
            ),
        ] = False,
    ) -> Any:
        with _no_collections():  # it imports the command
            command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
        return command(*bound.args, **bound.kwargs)

    for name, group in sorted(groups.items()):
        if name == chosen:
            command = _load(group)
            app.command(_shortened(command, is_short=_ALL not in arguments), name=name)
        elif chosen not in groups or arguments[0] != chosen:
            # Known by name: for the list of groups, and for suggestions when a name is mistyped.
            app.command(App(name=name, help=_summary(group)))
    return app


@contextmanager
def _no_collections() -> Iterator[None]:
    """Collect no garbage: imports make little, and each collection walks through all that they make."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _load(group: EntryPoint) -> Any:
    try:
        return group.load()
    except Exception as error:
        raise KmrError(
            f"the command {group.name} ({group.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error


def _summary(group: EntryPoint) -> str:
    """Return the first line of a group's docstring, read from its source without importing it."""
    try:
        source = _source(group.module)
        if source is None:
            return "(not installed)"
        module = ast.parse(source.read_bytes())
    except Exception:  # noqa: BLE001  loading the group reports the reason
        return "(cannot be loaded)"
    of: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef = module
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == group.attr:
            of = node
    line = (ast.get_docstring(of) or "").partition("\n")[0]
    line = _OWN_NAME.sub("", line)
    return line[:1].upper() + line[1:]


def _source(module: str) -> Path | None:
    """Find a module's file. For an inner module, `find_spec` would import the packages around it."""
    outermost, *inner = module.split(".")
    spec = importlib.util.find_spec(outermost)
    if spec is None:
        return None
    if not inner:
        return None if spec.origin is None else Path(spec.origin)
    for location in spec.submodule_search_locations or ():
        at = Path(location, *inner)
        for file in (at.with_suffix(".py"), at / "__init__.py"):
            if file.is_file():
                return file
    return None


def _print_error(message: str) -> None:
    plain_console(stderr=True).print(f"kmr: {message}", style="red")
