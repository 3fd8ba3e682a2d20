"""`kmr config`: look at the settings of a worker."""

from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from rich.console import Console

from framework.cli.flags import Given, with_settings
from framework.config.layers import Found
from framework.config.schema import Setting, settings_of
from framework.config.units import show_quantity
from framework.settings import Settings

__all__ = ["app"]

app = App(name="config", help="Look at the settings of a worker.")


@app.command
@with_settings()
def show(
    *,
    given: Given,
    as_json: Annotated[bool, Parameter("--json", negative=(), help="Print JSON.")] = False,
) -> None:
    """Print every setting, its value, and where the value comes from; secrets are masked.

    Takes the flags of `kmr run`. The output is TOML, and can be saved and given to --config.
    """
    found = given.find()
    console = Console(highlight=False, soft_wrap=True, markup=False)
    settings = settings_of(Settings)
    if as_json:
        shown = {
            setting.name: {"value": setting.masked(at.value), "origin": at.origin}
            for setting in settings
            if (at := found.get(setting.name)) is not None
        }
        console.print(msgspec.json.format(msgspec.json.encode(shown)).decode())
        return
    for line in to_toml(settings, found):
        console.print(line)


def to_toml(settings: tuple[Setting, ...], found: dict[str, Found]) -> list[str]:
    """The settings as lines of TOML, with their origins as comments; those not set are comments too."""
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
    # Strings, numbers, booleans and lists of these are written alike in JSON and TOML.
    return msgspec.json.encode(setting.masked(value)).decode()
