"""`kmr broker`: run the bundled broker, and work with any Kafka broker: topics, records, groups."""

import ast
from pathlib import Path
from typing import Final

from cyclopts import App

__all__ = ["app"]

_GROUPS: Final = {
    "topic": "Create, list, describe, alter and delete topics.",
    "group": "List and describe consumer groups.",
    "user": "Manage the users of a broker that runs with --users FILE; it reloads the file.",
    "acl": "Manage the access rules of a broker that runs with --acls FILE; it reloads the file.",
}
"""Modules with an `app` of several commands."""
_COMMANDS: Final = ("serve", "produce", "consume", "console", "doctor", "features")
"""Modules with one command of the same name."""


def _docstring(command: str) -> str:
    """Read the docstring of a command without importing its module."""
    module = ast.parse(Path(__file__).with_name(f"{command}.py").read_bytes())
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == command:
            return ast.get_docstring(node) or ""
    return ""


app = App(
    name="broker",
    help="Run the bundled broker, and work with any Kafka broker: topics, records, groups.",
)
# A command is imported when it is run: the client of `topic` and the broker of `serve` are large.
for _name, _help in _GROUPS.items():
    app.command(f"{__name__}.{_name}:app", name=_name, help=_help)
for _name in _COMMANDS:
    app.command(f"{__name__}.{_name}:{_name}", name=_name, help=_docstring(_name))
