"""`kmr config`: show the settings of a worker, with their origins."""

from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from ..config.flags import Given, settings_flags
from ..config.layers import LayeredValue
from ..config.schema import Setting, show_quantity
from ..settings import WORKER, Settings
from .output import plain_console, print_json

app = App(name="config", help="Show the settings of a worker, with their origins.")


@app.command
@settings_flags(WORKER, positional="strategy", first=("config", "as_json"))
def show(
    *,
    given: Given[Settings],
    as_json: Annotated[bool, Parameter("--json", negative=(), help="Print JSON.")] = False,
) -> None:
    """Print every setting, its value and the origin of the value; secrets are masked.

    Takes the flags of `kmr run`. The output is TOML: save it, and pass it to --config.
    """
    found = given.find()
    settings = WORKER.settings
    if as_json:
        shown = {
            setting.name: {"value": setting.masked(at.value), "origin": at.origin}
            for setting in settings
            if (at := found.get(setting.name)) is not None
        }
        print_json(shown)
        return
    console = plain_console()
    for line in to_toml(settings, found):
        console.print(line)


def to_toml(settings: tuple[Setting, ...], found: dict[str, LayeredValue]) -> list[str]:
    """Write the settings as lines of TOML, with origins as comments; unset settings are comments too."""
    lines: list[str] = []
    table = None
    for setting in settings:
        if setting.path[:-1] != table:
            table = setting.path[:-1]
            lines += ["", f"[{'.'.join(('kmr', *table))}]"]
        at = found.get(setting.name)
        if at is None or at.value is None:
            lines.append(f"# {setting.path[-1]} is not set: {setting.description}")
            continue
        text = f"{setting.path[-1]} = {_toml(setting, at.value)}"
        if setting.secret:
            text = f"# {text}"
        lines.append(text if at.origin == "default" else f"{text:<40}  # from {at.origin}")
    return lines[1:]


def _toml(setting: Setting, value: Any) -> str:
    if isinstance(value, int | float) and setting.unit is not None:
        shown = show_quantity(value, setting.unit)
        return f'"{shown}"' if shown[-1].isalpha() else shown
    # JSON and TOML write strings, numbers, booleans and lists of these alike.
    return msgspec.json.encode(setting.masked(value)).decode()
