"""`kmr completion`: print the completion script of a shell, or install it."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Annotated, Literal

from cyclopts import App, Parameter

from .output import plain_console
from .root import GROUP


def completion(
    shell: Literal["bash", "zsh", "fish"],
    /,
    *,
    install: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Print the completion script of a shell, or install it.

    It completes commands, flags and their values. Make it again after an update. zsh finds it only under the
    name `_cyclopts_kmr`.

    For example:

        kmr completion bash --install
        kmr completion zsh > ~/.zfunc/_cyclopts_kmr

    Parameters
    ----------
    shell
        The shell.
    install
        Write the script where the shell looks for it, and have its startup file load it.
    """
    app = whole_app()
    if not install:
        sys.stdout.write(app.generate_completion(shell=shell))
        return
    path = app.install_completion(shell=shell)
    plain_console().print(f"{path} is written; a new {shell} completes kmr")


def whole_app(text: str = "") -> App:
    """Return the command with all of its groups, each imported."""
    app = App(name="kmr", help=text)
    for group in sorted(entry_points(group=GROUP)):
        app.command(group.load(), name=group.name)
    return app
