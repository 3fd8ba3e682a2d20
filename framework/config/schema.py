"""The leaves of a settings struct: name, type, default, and how a value is read and shown.

The type of a setting is `Annotated` with what `about` returns: the description, and where needed the
name of its flag, the section of the help that begins with it, and whether it is secret. Types with a unit
(`Seconds`, `Bytes`) may be written with one: `500ms`, `16MiB`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, inspect

from ..errors import SettingsError, StrategyError

if TYPE_CHECKING:
    from collections.abc import Iterator

BYTES: Final = "bytes"
SECONDS: Final = "seconds"

Seconds = Annotated[float, Meta(gt=0, extra={"unit": SECONDS})]
Bytes = Annotated[int, Meta(gt=0, extra={"unit": BYTES})]
Count = Annotated[int, Meta(gt=0)]
NonNegative = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Text = Annotated[str, Meta(min_length=1)]

_ADDRESS: Final = r"\s*([^\s,:\[\]]+|\[[^\s,\[\]]+\]):\d+\s*"
ADDRESSES: Final = rf"^{_ADDRESS}(,{_ADDRESS})*$"
"""Matches `host:port,[ipv6]:port`."""
Addresses = Annotated[str, Meta(pattern=ADDRESSES)]

MASK: Final = "***"
_BOOLS: Final = {"yes": True, "on": True, "true": True, "1": True} | {
    "no": False,
    "off": False,
    "false": False,
    "0": False,
}
_NONE: Final = frozenset({"none", "off", "null"})
_EXAMPLES: Final = {BYTES: "16MiB", SECONDS: "500ms"}


def about(
    description: str,
    *,
    flag: str | None = None,
    section: str | None = None,
    secret: bool = False,
    unless: str | None = None,
) -> Meta:
    """Describe a setting.

    Args:
        description: for the help; it names the default only if that is no value: "default: ...".
        flag: the name of the flag, without dashes, if it is not that of the setting.
        section: the heading of the help that begins with this setting.
        secret: the value is never shown.
        unless: it must be set (its default is empty) unless the setting of this dotted name is.
    """
    extra = {"flag": flag, "section": section, "secret": secret, "unless": unless}
    return Meta(
        description=description, extra={key: value for key, value in extra.items() if value}
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of a settings struct.

    Attributes:
        path: the names of the structs around it and its own: `("fetch", "max_bytes")`.
        type: as msgspec understands it.
        default: `msgspec.NODEFAULT` if it is required.
        flag: without the dashes: `fetch-max-bytes`.
        section: the heading in the help.
        unless: see `about`.
    """

    path: tuple[str, ...]
    type: Any
    default: Any
    description: str
    unit: str | None
    secret: bool
    flag: str
    section: str
    unless: str | None = None

    @property
    def name(self) -> str:
        """The dotted name: `fetch.max_bytes`."""
        return ".".join(self.path)

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def allowed(self) -> str:
        """The values that are allowed, in words."""
        words = [_words(member) for member in self._members()]
        if self.unit is not None:
            words[0] = f"{self.unit}, {words[0]}, or with a unit as in {_EXAMPLES[self.unit]}"
        return " or ".join(words)

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed words; empty unless the setting is one of a few words."""
        words: list[str] = []
        for member in self._members():
            if isinstance(member, inspect.LiteralType):
                words += map(str, member.values)
            elif not isinstance(member, inspect.NoneType):
                return ()
        return tuple(words)

    @property
    def is_list(self) -> bool:
        return self._is_a(inspect.VarTupleType)

    @property
    def is_switch(self) -> bool:
        return self._is_a(inspect.BoolType)

    def value_in(self, settings: msgspec.Struct) -> Any:
        """Return this setting's value in a struct."""
        value: Any = settings
        for name in self.path:
            value = getattr(value, name)
        return value

    def masked(self, value: Any) -> Any:
        """Return the value, or a mask if it is a secret."""
        return MASK if self.secret and value is not None else value

    def shown(self, value: object) -> str:
        """Return the value as it is shown in messages; secrets are masked."""
        return MASK if self.secret and value is not None else repr(value)

    def convert(self, value: object) -> Any:
        """Convert a value to its type; parse strings, from variables and flags. Raises ValueError."""
        if isinstance(value, str):
            value = self._read(value)
        return msgspec.convert(value, self.type, strict=False, dec_hook=_decode)

    def _read(self, text: str) -> object:
        """Return a string as the nearest value that msgspec can convert."""
        word = text.strip().lower()
        if word in _NONE and self._is_a(inspect.NoneType):
            return None
        if self.is_list:
            return [item.strip() for item in text.split(",") if item.strip()]
        if self.is_switch:
            return _BOOLS.get(word, text)
        return text if self.unit is None else read_quantity(text, self.unit)

    def _is_a(self, kind: type[inspect.Type]) -> bool:
        return any(isinstance(member, kind) for member in self._members())

    def _members(self) -> Iterator[inspect.Type]:
        return _members(inspect.type_info(self.type))


@cache
def settings_of(struct: type[msgspec.Struct]) -> tuple[Setting, ...]:
    """Return every leaf of a settings struct, in the order of its fields."""
    return tuple(_leaves(struct, (), "Settings"))


def check_values(settings: msgspec.Struct) -> None:
    """Check each value of a struct that was built by hand. Raises SettingsError."""
    for setting in settings_of(type(settings)):
        value = setting.value_in(settings)
        try:
            msgspec.convert(value, setting.type)
            if isinstance(value, float) and not isfinite(value):
                raise msgspec.ValidationError
        except msgspec.ValidationError:
            raise SettingsError(
                f"{setting.name} must be {setting.allowed}, not {setting.shown(value)}"
            ) from None


def struct_of(annotation: Any) -> type[msgspec.Struct] | None:
    """Return the annotation if it is a struct, that is a group of settings."""
    is_struct = isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)
    return annotation if is_struct else None


def _leaves(
    struct: type[msgspec.Struct], outer: tuple[str, ...], section: str
) -> Iterator[Setting]:
    for field in msgspec.structs.fields(struct):
        path = (*outer, field.name)
        inner = struct_of(field.type)
        if inner is not None:
            yield from _leaves(inner, path, section)
            continue
        description, extra = _metadata(inspect.type_info(field.type))
        section = extra.get("section", section)
        yield Setting(
            path=path,
            type=field.type,
            default=field.default,
            description=description,
            unit=extra.get("unit"),
            secret=extra.get("secret", False),
            flag=extra.get("flag") or "-".join(path).replace("_", "-"),
            section=section,
            unless=extra.get("unless"),
        )


def _metadata(info: inspect.Type) -> tuple[str, dict[str, Any]]:
    """Return a type's description and its extras, with those of its union members."""
    extra: dict[str, Any] = {}
    if isinstance(info, inspect.UnionType):
        for member in info.types:
            extra |= _metadata(member)[1]
    elif isinstance(info, inspect.Metadata):
        description, extra = _metadata(info.type)
        description = (info.extra_json_schema or {}).get("description", description)
        return description, extra | (info.extra or {})
    return "", extra


def _members(info: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(info, inspect.Metadata):
        yield from _members(info.type)
    elif isinstance(info, inspect.UnionType):
        for member in info.types:
            yield from _members(member)
    else:
        yield info


def _decode(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str) and value:
        return Path(value)
    raise ValueError(f"{value!r} is not a {kind.__name__}")


def _words(info: inspect.Type) -> str:
    match info:
        case inspect.LiteralType(values=(only,)):
            return repr(only)
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(map(str, values))
        case inspect.IntType() | inspect.FloatType():
            number = "a whole number" if isinstance(info, inspect.IntType) else "a number"
            bounds = ((">", info.gt), (">=", info.ge), ("<", info.lt), ("<=", info.le))
            limits = [f"{sign} {bound:.12g}" for sign, bound in bounds if bound is not None]
            return " ".join([number, " and ".join(limits)]).rstrip()
        case inspect.StrType(pattern=str()):
            return "host:port, or several separated by commas"
        case inspect.StrType(min_length=int()):
            return "text that is not empty"
        case inspect.StrType():
            return "text"
        case inspect.BoolType():
            return "true or false"
        case inspect.VarTupleType():
            return "a list of texts"
        case inspect.NoneType():
            return "'none'"
        case inspect.CustomType(cls=cls) if cls is Path:
            return "a path"
        case _:
            return type(info).__name__.removesuffix("Type").lower()


_UNITS: Final[dict[str, dict[str, float]]] = {
    BYTES: {
        "b": 1,
        **{f"{letter}{b}": 1000**i for i, letter in enumerate("kmgt", 1) for b in ("", "b")},
        **{f"{letter}i{b}": 1024**i for i, letter in enumerate("kmgt", 1) for b in ("", "b")},
    },
    SECONDS: {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400},
}
_SHOWN: Final = {
    BYTES: (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024), ("B", 1)),
    SECONDS: (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)),
}
_QUANTITY: Final = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_quantity(text: str, unit: str) -> float:
    """Return a number of `unit`s, an int for bytes; `text` may name another unit. Raises ValueError.

    Bytes: `kB`, `MB`, `GB` are powers of 1000, `KiB`, `MiB`, `GiB` of 1024. Seconds: `ms s m h d`.
    """
    match = _QUANTITY.fullmatch(text)
    factor = {"": 1, **_UNITS[unit]}.get(match[2].lower()) if match else None
    if match is None or factor is None:
        known = " ".join(_UNITS[unit])
        raise ValueError(f"{text!r} is not a number with one of the units {known}")
    amount = float(match[1]) * factor
    if unit == SECONDS:
        return amount
    if not amount.is_integer():
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(amount)


Duration: TypeAlias = float | str | timedelta
"""Seconds, a text with a unit (`"5m"`), or a `timedelta`."""


def parse_duration(given: Duration, subject: str, *, zero: bool = False) -> float:
    """Return an argument in seconds.

    Args:
        zero: whether 0 is allowed, too.

    Raises:
        StrategyError: it is no duration, or not above 0; the message begins with `subject`.
    """
    try:
        if isinstance(given, timedelta):
            given = given.total_seconds()
        seconds = parse_quantity(given, SECONDS) if isinstance(given, str) else float(given)
    except (TypeError, ValueError) as error:
        raise StrategyError(f"{subject}: {error}") from error
    if not isfinite(seconds):
        raise StrategyError(f"{subject}: {given!r} is no duration")
    if seconds < 0 or not (seconds or zero):
        least = "at least" if zero else "above"
        raise StrategyError(f"{subject} must be {least} 0, not {given!r}")
    return seconds


def read_quantity(text: str, unit: str) -> float | str:
    """Return the number of `unit`s, or `text` itself if it is not a quantity that names its unit."""
    match = _QUANTITY.fullmatch(text)
    try:
        return parse_quantity(text, unit) if match and match[2] else text
    except ValueError:
        return text


def show_count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `1,000 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_quantity(value: float, unit: str | None) -> str:
    """Return a quantity in the largest unit that leaves it whole; floats without trailing zeros."""
    shown = _SHOWN[unit] if unit else (("", 1),)
    name, factor = next(each for each in shown if each[1] == 1 or (value and value % each[1] == 0))
    amount = value / factor
    return f"{amount:.0f}{name}" if amount.is_integer() else f"{amount:.12g}{name}"
