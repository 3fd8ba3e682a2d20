"""Find each setting's value in the layers, remember where it came from, build the struct."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from framework.config.schema import settings_of, struct_of
from framework.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from framework.config.schema import Setting

__all__ = ["Conflict", "Found", "build", "resolve"]

T = TypeVar("T", bound=msgspec.Struct)
_Raw = dict[str, tuple[object, str]]
"""By dotted name: a value as it was written, and where."""

# An unknown variable this close to a known one is a slip; others belong to somebody else (Kubernetes
# adds KMR_SERVICE_HOST and the like when a service is called kmr).
_SLIP = 0.8


class Conflict(SettingsError):
    """Settings that are fine each by itself, but not together."""

    def __init__(self, names: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.names = names


@dataclass(frozen=True, slots=True)
class Found:
    """A value, already of its type, and where it came from."""

    value: Any
    origin: str


def resolve(
    struct: type[msgspec.Struct],
    *,
    config: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    prefix: str,
) -> dict[str, Found]:
    """The value and origin of each setting that is set or has a default, by dotted name.

    Args:
        config: a TOML file; its table `[prefix]` is read.
        environ: variables `PREFIX_NAME`, nested names by `__`; an empty one counts as not set.
        flags: by dotted name; None counts as not given.

    Raises:
        SettingsError: every value that is not allowed and every unknown name, one per line.
    """
    settings = {setting.name: setting for setting in settings_of(struct)}
    problems: list[str] = []
    raw: _Raw = {
        name: (setting.default, "default")
        for name, setting in settings.items()
        if not setting.required
    }
    if config is not None:
        raw |= _from_file(config, settings, prefix, problems)
    raw |= _from_environment(environ, settings, prefix, problems)
    raw |= _from_flags(flags, settings, problems)
    found = {}
    for name, (value, origin) in raw.items():
        setting = settings[name]
        try:
            found[name] = Found(setting.convert(value), origin)
        except ValueError:
            problems.append(
                f"{name} must be {setting.allowed}, not {setting.shown(value)} (from {origin})"
            )
    if problems:
        raise SettingsError("\n".join(problems))
    return found


def build(struct: type[T], found: Mapping[str, Found], *, prefix: str) -> T:
    """The struct with the values that `resolve` found.

    Raises:
        SettingsError: a required setting is missing, or settings do not fit together.
    """
    missing = [
        f"{setting.name} is not set: give --{setting.flag}, set {setting.variable(prefix)}, or write "
        f"{setting.path[-1]} under [{'.'.join((prefix, *setting.path[:-1]))}] in the TOML file"
        for setting in settings_of(struct)
        if setting.required and setting.name not in found
    ]
    if missing:
        raise SettingsError("\n".join(missing))
    try:
        return _build(struct, found, ())
    except Conflict as conflict:
        origins = ", ".join(f"{name} from {found[name].origin}" for name in conflict.names)
        raise SettingsError(f"{conflict} ({origins})") from None


def _build(struct: type[T], found: Mapping[str, Found], outer: tuple[str, ...]) -> T:
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        path = (*outer, field.name)
        inner = struct_of(field.type)
        if inner is not None:
            values[field.name] = _build(inner, found, path)
        elif (at := found.get(".".join(path))) is not None:
            values[field.name] = at.value
    return struct(**values)


def _from_file(
    config: Path, settings: Mapping[str, Setting], prefix: str, problems: list[str]
) -> _Raw:
    tables = {name.rpartition(".")[0] for name in settings}
    found: _Raw = {}

    def walk(table: Mapping[str, object], outer: str) -> None:
        where = f"{config} [{prefix}.{outer}]" if outer else f"{config} [{prefix}]"
        for key, value in table.items():
            name = f"{outer}.{key}" if outer else key
            if name in settings:
                found[name] = (value, f"{where} {key}")
            elif name not in tables:
                near = _nearest(name, [*settings, *filter(None, tables)])
                problems.append(f"there is no setting {name!r} (in {where}){near}")
            elif isinstance(value, dict):
                walk(value, name)
            else:
                problems.append(f"{name} is a table: write [{prefix}.{name}] (in {where})")

    walk(_read_table(config, prefix), "")
    return found


def _read_table(config: Path, prefix: str) -> Mapping[str, object]:
    try:
        document = tomllib.loads(config.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings in {config}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{config} is not a text file in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{config} is not valid TOML: {error}") from None
    table = document.get(prefix)
    if not isinstance(table, dict):
        raise SettingsError(f"{config} has no table [{prefix}]; write the settings under it")
    return table


def _from_environment(
    environ: Mapping[str, str], settings: Mapping[str, Setting], prefix: str, problems: list[str]
) -> _Raw:
    variables = {setting.variable(prefix): name for name, setting in settings.items()}
    start = f"{prefix.upper()}_"
    # Compared without what they all begin with, which would make everything look alike.
    bare = [variable.removeprefix(start) for variable in variables]
    found: _Raw = {}
    for variable, text in environ.items():
        if variable in variables:
            if text:
                found[variables[variable]] = (text, f"environment variable {variable}")
        elif variable.startswith(start):
            near = difflib.get_close_matches(variable.removeprefix(start), bare, 1, _SLIP)
            if near:
                problems.append(
                    f"there is no setting for the environment variable {variable}; "
                    f"did you mean {start}{near[0]}?"
                )
    return found


def _from_flags(
    flags: Mapping[str, object], settings: Mapping[str, Setting], problems: list[str]
) -> _Raw:
    found: _Raw = {}
    for name, value in flags.items():
        if value is None:
            continue
        if name in settings:
            found[name] = (value, f"flag --{settings[name].flag}")
        else:
            problems.append(f"there is no setting {name!r}{_nearest(name, list(settings))}")
    return found


def _nearest(name: str, names: Sequence[str]) -> str:
    """A suggestion: the name that looks like it, else one that ends alike in another table."""
    near = difflib.get_close_matches(name, names, 1)
    if not near:
        ends = {candidate.rpartition(".")[2]: candidate for candidate in names}
        near = [
            ends[end] for end in difflib.get_close_matches(name.rpartition(".")[2], list(ends), 1)
        ]
    return f"; did you mean {near[0]}?" if near else ""
