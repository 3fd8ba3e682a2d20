"""Find each setting's value in the layers, with its origin, and build the struct.

cyclopts' own `config.Toml` and `config.Env` are not used: they stop at the first mistake, do not name the
table, print secrets, and exist only behind a command line, while `Settings.load` works without one.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from ..errors import SettingsError, did_you_mean
from .schema import settings_of, struct_of
from .secrets import FILE_SUFFIX, read_secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .schema import Setting

T = TypeVar("T", bound=msgspec.Struct)
_Raw = dict[str, tuple[object, str]]
"""By dotted name: a value as it was written, and its origin."""

# An unknown variable this similar to a known one is a typo. Others are none of ours: Kubernetes adds
# KMR_SERVICE_HOST and the like when a service is called kmr.
_TYPO: Final = 0.8


class Conflict(SettingsError):
    """Settings that are allowed one by one, but not together."""

    def __init__(self, names: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.names = names


@dataclass(frozen=True, slots=True)
class LayeredValue:
    """A value, already of its type, and its origin."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Layers(Generic[T]):
    """The layers of one settings struct, and what a setting is called in each.

    Attributes:
        struct: describes the settings.
        variables: what environment variables begin with: `KMR_`.
        table: the table in a TOML file; None if the settings cannot be in a file.
        whole: the struct whose settings may be in the layers, if `struct` has only some of them.
    """

    struct: type[T]
    variables: str
    table: str | None = None
    whole: type[msgspec.Struct] | None = None

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """The settings of `struct`."""
        return settings_of(self.struct)

    @cached_property
    def _known(self) -> dict[str, Setting]:
        return {setting.name: setting for setting in settings_of(self.whole or self.struct)}

    def variable(self, setting: Setting) -> str:
        """Return the environment variable of a setting: `KMR_FETCH__MAX_BYTES`."""
        return f"{self.variables}{'__'.join(setting.path).upper()}"

    def load(
        self, config: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
    ) -> T:
        """Build the struct from all layers; takes the arguments of `find`.

        Raises:
            SettingsError: as `find`; or a required setting is missing, or settings do not fit together.
        """
        return self.build(self.find(config, environ, flags))

    def find(
        self, config: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
    ) -> dict[str, LayeredValue]:
        """Find the value and the origin of each setting that is set or has a default, by dotted name.

        A secret may be in a file that the variable NAME_FILE names (`kmr.config.secrets`).

        Args:
            config: a TOML file.
            environ: environment variables; an empty one counts as not set.
            flags: by dotted name; None counts as not given.

        Raises:
            SettingsError: every value that is not allowed and every unknown name, one per line.
        """
        settings = self._known
        problems: list[str] = []
        raw: _Raw = {
            name: (setting.default, "default")
            for name, setting in settings.items()
            if not setting.required
        }
        if config is not None and self.table is not None:
            raw |= _from_file(config, self.table, settings, problems)
        raw |= self._from_environment(environ, problems)
        raw |= _from_flags(flags, settings, problems)
        found = {}
        for name, (value, origin) in raw.items():
            setting = settings[name]
            try:
                found[name] = LayeredValue(setting.convert(value), origin)
            except ValueError:
                problems.append(
                    f"{name} must be {setting.allowed}, not {setting.shown(value)} (from {origin})"
                )
        if problems:
            raise SettingsError("\n".join(problems))
        return found

    def build(self, found: Mapping[str, LayeredValue]) -> T:
        """Build the struct from the values that `find` returned.

        Raises:
            SettingsError: a required setting is missing, or settings do not fit together.
        """
        missing = [
            f"{setting.name} is not set: {self._ways(setting)}"
            for setting in self.settings
            if _is_missing(setting, found)
        ]
        if missing:
            raise SettingsError("\n".join(missing))
        try:
            return _build(self.struct, found, ())
        except Conflict as conflict:
            origins = ", ".join(f"{name} from {found[name].origin}" for name in conflict.names)
            raise SettingsError(f"{conflict} ({origins})") from None

    def _ways(self, setting: Setting) -> str:
        other = f"; or set {setting.unless}" if setting.unless else ""
        if self.table is None:
            return f"give --{setting.flag}, or set {self.variable(setting)}{other}"
        table = ".".join((self.table, *setting.path[:-1]))
        return (
            f"give --{setting.flag}, set {self.variable(setting)}, or write {setting.path[-1]} "
            f"under [{table}] in the TOML file{other}"
        )

    def _from_environment(self, environ: Mapping[str, str], problems: list[str]) -> _Raw:
        names = {self.variable(setting): name for name, setting in self._known.items()}
        # Compared without the common prefix, which would make all names similar.
        bare = [variable.removeprefix(self.variables) for variable in names]
        found: _Raw = {}
        files = {
            f"{self.variable(setting)}{FILE_SUFFIX}": setting
            for setting in self._known.values()
            if setting.secret
        }
        for variable, text in environ.items():
            if variable in files:
                if text:
                    setting = files[variable]
                    try:
                        secret = read_secret(environ, self.variable(setting))
                    except SettingsError as error:
                        problems.append(str(error))
                    else:
                        found[setting.name] = (secret, f"file {text} ({variable})")
            elif variable in names:
                if text:
                    found[names[variable]] = (text, f"environment variable {variable}")
            elif variable.startswith(self.variables):
                near = difflib.get_close_matches(
                    variable.removeprefix(self.variables), bare, 1, _TYPO
                )
                if near:
                    problems.append(
                        f"there is no setting for the environment variable {variable}; "
                        f"did you mean {self.variables}{near[0]}?"
                    )
        return found


def _is_missing(setting: Setting, found: Mapping[str, LayeredValue]) -> bool:
    if setting.unless is None:
        return setting.required and setting.name not in found
    return not found[setting.name].value and not found[setting.unless].value


def _build(struct: type[T], found: Mapping[str, LayeredValue], outer: tuple[str, ...]) -> T:
    values: dict[str, Any] = {}
    for each in msgspec.structs.fields(struct):
        path = (*outer, each.name)
        inner = struct_of(each.type)
        if inner is not None:
            values[each.name] = _build(inner, found, path)
        elif (at := found.get(".".join(path))) is not None:
            values[each.name] = at.value
    return struct(**values)


def _from_file(
    config: Path, name_of_table: str, settings: Mapping[str, Setting], problems: list[str]
) -> _Raw:
    tables = {name.rpartition(".")[0] for name in settings}
    found: _Raw = {}

    def walk(table: Mapping[str, object], outer: str) -> None:
        inside = f"{name_of_table}.{outer}" if outer else name_of_table
        where = f"{config} [{inside}]"
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
                problems.append(f"{name} is a table: write [{name_of_table}.{name}] (in {where})")

    walk(_read_table(config, name_of_table), "")
    return found


def _read_table(config: Path, name: str) -> Mapping[str, object]:
    try:
        document = tomllib.loads(config.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings in {config}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{config} is not a text file in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{config} is not valid TOML: {error}") from None
    table = document.get(name)
    if not isinstance(table, dict):
        raise SettingsError(f"{config} has no table [{name}]; write the settings under it")
    return table


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
    """Suggest the most similar name, else one with a similar last part in another table."""
    ends = {candidate.rpartition(".")[2]: candidate for candidate in names}
    return did_you_mean(name, names) or did_you_mean(
        name.rpartition(".")[2], ends, shown=ends.__getitem__
    )


def by_dotted_name(given: Mapping[str, Any]) -> dict[str, object]:
    """Return settings by the names of layers: a dict or an object of settings holds several."""
    flags: dict[str, object] = {}
    for name, value in given.items():
        if isinstance(value, msgspec.Struct):
            value = msgspec.structs.asdict(value)
        if isinstance(value, dict):
            flags |= {f"{name}.{inner}": each for inner, each in value.items()}
        else:
            flags[name] = value
    return flags
