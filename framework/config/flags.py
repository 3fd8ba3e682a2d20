"""A flag for every setting of a struct."""

from __future__ import annotations

import functools
import inspect
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar, get_type_hints

import msgspec
from cyclopts import Group, Parameter

from .schema import BYTES, SECONDS, show_quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from .layers import LayeredValue, Layers
    from .schema import Setting

R = TypeVar("R")
T = TypeVar("T", bound=msgspec.Struct)

_UNITS: Final = {BYTES: "BYTES", SECONDS: "SECONDS"}
_RARE: Final = "Security"


@dataclass(frozen=True)
class Given(Generic[T]):
    """The settings of a command line, above those of the file and the environment."""

    layers: Layers[T]
    config: Path | None
    flags: Mapping[str, object]

    def load(self, **more: object) -> T:
        """Return the settings of all layers; `more` counts as flags. Raises SettingsError."""
        return self.layers.load(self.config, os.environ, {**self.flags, **more})

    def find(self) -> dict[str, LayeredValue]:
        """Return each setting with its origin; none is required. Raises SettingsError."""
        return self.layers.find(self.config, os.environ, self.flags)


def settings_flags(
    layers: Layers[T],
    *,
    positional: str = "",
    without: Container[str] = (),
    first: Sequence[str] = (),
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Decorate a command: it gets a flag for every setting, and is called with `given: Given[T]`.

    Flags pass texts on, and `Given` parses them: a wrong value has the same message in every layer. If
    the settings can be in a file, the command gets `--config` too.

    Args:
        positional: a setting that the command takes as its argument, and that has no flag.
        without: settings that the command sets itself.
        first: the parameters that `--help` shows; `--help-all` shows the others, too. Empty: all but the
            settings of security.
    """
    settings = {
        s.name.replace(".", "_"): s
        for s in layers.settings
        if s.name != positional and s.name not in without
    }
    titles = dict.fromkeys(setting.section for setting in layers.settings)
    sections = {title: Group(title, sort_key=order) for order, title in enumerate(titles, 1)}
    added = [
        _flag(name, setting, layers.variable(setting), sections[setting.section])
        for name, setting in settings.items()
    ]
    if layers.table is not None:
        added.insert(0, _config_flag(layers.table))
    rare = {name for name, setting in settings.items() if setting.section == _RARE}

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(function)
        def command(*arguments: Any, config: Path | None = None, **options: Any) -> R:
            flags = {
                setting.name: options.pop(name)
                for name, setting in settings.items()
                if name in options
            }
            return function(*arguments, given=Given(layers, config, flags), **options)

        own = [p for p in inspect.signature(function).parameters.values() if p.name != "given"]
        annotations = get_type_hints(function, include_extras=True)
        command.__annotations__ = annotations | {p.name: p.annotation for p in added}
        command.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        hidden = {p.name for p in (*own, *added)}.difference(first) if first else rare
        command.__hidden__ = hidden  # type: ignore[attr-defined]
        return command

    return decorate


def shortened(function: Callable[..., R], *, is_short: bool = True) -> Callable[..., R]:
    """Return a command whose help leaves out the flags that few use (`settings_flags`), or has all."""
    function = getattr(function, "__whole__", function)
    rare: set[str] = getattr(function, "__hidden__", set())
    if not rare or not is_short:
        return function

    @functools.wraps(function)
    def command(*arguments: Any, **options: Any) -> R:
        return function(*arguments, **options)

    hints = get_type_hints(function, include_extras=True)
    parameters, hidden = [], 0
    for name, p in inspect.signature(function).parameters.items():
        annotation = hints.get(name, p.annotation)
        if p.kind is p.KEYWORD_ONLY and name in rare:
            annotation, hidden = Annotated[annotation, Parameter(show=False)], hidden + 1
        parameters.append(p.replace(annotation=annotation))
    command.__whole__ = function  # type: ignore[attr-defined]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    summary, _, rest = (function.__doc__ or "").partition("\n")
    about = f"These are the flags that are used first; --help-all shows {hidden} more."
    command.__doc__ = f"{summary}\n\n    {about}\n{rest}"
    return command


def _config_flag(table: str) -> inspect.Parameter:
    about = Parameter(
        name="--config",
        help=f"TOML file with settings under [{table}]; the environment and flags override it.",
    )
    return inspect.Parameter(
        "config",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Path | None, about],
    )


def _flag(name: str, setting: Setting, variable: str, section: Group) -> inspect.Parameter:
    kind: Any = str
    if setting.is_list:
        kind = list[str]
    elif setting.is_switch:
        kind = bool
    about = Parameter(
        name=f"--{setting.flag}",
        help=" ".join(
            filter(
                None,
                (
                    setting.description,
                    f"[choices: {', '.join(setting.choices)}]" if setting.choices else "",
                    f"[env var: {variable}]",
                    _default(setting),
                ),
            )
        ),
        group=section,
        metavar="CHOICE" if setting.choices else _UNITS.get(setting.unit or "", "VALUE"),
        negative_iterable=(),
        show_default=False,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, about],
    )


def _default(setting: Setting) -> str:
    default = setting.default
    if setting.required or default == () or "default:" in setting.description:
        return ""
    if setting.is_switch:
        return f"[default: --{'' if default else 'no-'}{setting.flag}]"
    if default is None:
        return "[default: none]"
    shown = default if isinstance(default, str) else show_quantity(default, setting.unit)
    return f"[default: {shown}]"
