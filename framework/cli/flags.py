"""One flag for every setting of a worker."""

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import msgspec
from cyclopts import Group, Parameter

from framework.config.layers import Found, build
from framework.config.schema import Setting, settings_of
from framework.config.units import BYTES, SECONDS, show_quantity
from framework.settings import PREFIX, GroupSettings, Settings, find_settings

__all__ = ["Given", "with_settings"]

T = TypeVar("T")

_POSITIONAL: Final = "strategy"
_GROUPS: Final = {
    "": Group("Settings", sort_key=1),
    "fetch": Group("Fetching", sort_key=2),
    "security": Group("Security", sort_key=3),
    "http": Group("HTTP", sort_key=4),
    "log": Group("Logs", sort_key=5),
}
_UNITS: Final = {BYTES: "BYTES", SECONDS: "SECONDS"}


class Given:
    """What a command line says about settings, on top of the file and the environment."""

    def __init__(self, config: Path | None, flags: Mapping[str, object]) -> None:
        self._config = config
        self._flags = flags

    def load(self, **more: object) -> Settings:
        """The settings of all layers; `more` counts as flags. Raises SettingsError."""
        return Settings.load(self._config, os.environ, {**self._flags, **more})

    def load_group(self) -> GroupSettings:
        """The settings that name a group and its brokers. Raises SettingsError."""
        return build(GroupSettings, self.find(), prefix=PREFIX)

    def find(self) -> dict[str, Found]:
        """The same one by one, with their origins, and with nothing required. Raises SettingsError."""
        return find_settings(self._config, os.environ, self._flags)


def with_settings(
    struct: type[msgspec.Struct] = Settings,
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command `--config` and a flag for every setting of `struct`; it is called with `given: Given`.

    The flags hand over what was typed, and `Given` reads it: a wrong value is explained in the same
    words wherever it came from.
    """
    return functools.partial(_with_settings, struct)


def _with_settings(struct: type[msgspec.Struct], function: Callable[..., T]) -> Callable[..., T]:
    settings = {
        setting.name.replace(".", "_"): setting
        for setting in settings_of(struct)
        if setting.name != _POSITIONAL
    }

    @functools.wraps(function)
    def command(*arguments: Any, config: Path | None = None, **options: Any) -> T:
        flags = {
            setting.name: options.pop(name) for name, setting in settings.items() if name in options
        }
        return function(*arguments, given=Given(config, flags), **options)

    own = [p for p in inspect.signature(function).parameters.values() if p.name != "given"]
    added = [_config_flag(), *(_flag(name, setting) for name, setting in settings.items())]
    signature = inspect.Signature([*own, *added])
    annotations = get_type_hints(function, include_extras=True)
    command.__annotations__ = annotations | {p.name: p.annotation for p in added}
    command.__signature__ = signature  # type: ignore[attr-defined]
    return command


def _config_flag() -> inspect.Parameter:
    about = Parameter(
        name="--config",
        help="TOML file with the settings under [kmr]; flags and environment go before it.",
    )
    return inspect.Parameter(
        "config",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Path | None, about],
    )


def _flag(name: str, setting: Setting) -> inspect.Parameter:
    kind: Any = str
    if setting.is_list:
        kind = list[str]
    elif setting.is_switch:
        kind = bool
    about = Parameter(
        name=f"--{setting.flag}",
        help=" ".join(filter(None, (setting.description, _default(setting)))),
        group=_GROUPS[setting.path[0] if len(setting.path) > 1 else ""],
        metavar="|".join(setting.choices) or _UNITS.get(setting.unit or "", "VALUE"),
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
    if setting.required or setting.default in (None, ()):
        return ""
    shown = setting.default
    if isinstance(shown, int | float) and not setting.is_switch:
        shown = show_quantity(shown, setting.unit)
    return f"[default: {shown}]"
