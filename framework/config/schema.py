"""What one setting is: its name, its type, its default, and how a value is read and shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import inspect

from framework.config.units import BYTES, SECONDS, read_quantity
from framework.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MASK", "Setting", "check_values", "settings_of", "struct_of"]

MASK: Final = "***"
_BOOLS: Final = {"yes": True, "on": True, "true": True, "1": True} | {
    "no": False,
    "off": False,
    "false": False,
    "0": False,
}
_NONE: Final = frozenset({"none", "off", "null"})
_EXAMPLES: Final = {BYTES: "16MiB", SECONDS: "500ms"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of a settings struct.

    Attributes:
        path: the field's name, with the names of the structs around it: `("fetch", "max_bytes")`.
        type: what a value must be, as msgspec understands it.
        default: `msgspec.NODEFAULT` if it must be set.
        flag: without the dashes: `fetch-max-bytes`.
    """

    path: tuple[str, ...]
    type: Any
    default: Any
    description: str
    unit: str | None
    secret: bool
    flag: str

    @property
    def name(self) -> str:
        """The dotted name: `fetch.max_bytes`."""
        return ".".join(self.path)

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is msgspec.NODEFAULT

    def variable(self, prefix: str) -> str:
        """The environment variable: `KMR_FETCH__MAX_BYTES`."""
        return f"{prefix}_{'__'.join(self.path)}".upper()

    def value_in(self, settings: msgspec.Struct) -> Any:
        """This setting's value in a whole struct of settings."""
        value: Any = settings
        for name in self.path:
            value = getattr(value, name)
        return value

    def shown(self, value: object) -> str:
        """A value for people: secrets masked."""
        return MASK if self.secret and value is not None else repr(value)

    def masked(self, value: Any) -> Any:
        """The value itself, unless it is a secret."""
        return MASK if self.secret and value is not None else value

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        words = [_words(member) for member in _members(inspect.type_info(self.type))]
        if self.unit is not None:
            words[0] = f"{self.unit}, {words[0]}, or with a unit as in {_EXAMPLES[self.unit]}"
        return " or ".join(words)

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that are allowed, if it is one of a few words."""
        return tuple(
            str(word)
            for member in _members(inspect.type_info(self.type))
            if isinstance(member, inspect.LiteralType)
            for word in member.values
        )

    @property
    def is_list(self) -> bool:
        """Whether it has any number of values."""
        return self._is_a(inspect.VarTupleType)

    @property
    def is_switch(self) -> bool:
        """Whether it is true or false."""
        return self._is_a(inspect.BoolType)

    def convert(self, value: object) -> Any:
        """The value as its type; strings, from variables and flags, are read. Raises ValueError."""
        if isinstance(value, str):
            value = self._read(value)
        return msgspec.convert(value, self.type, strict=False)

    def _read(self, text: str) -> object:
        """A string as the nearest thing that msgspec can convert."""
        word = text.strip().lower()
        if word in _NONE and self._is_a(inspect.NoneType):
            return None
        if self.is_list:
            return [item.strip() for item in text.split(",") if item.strip()]
        if self.is_switch:
            return _BOOLS.get(word, text)
        return text if self.unit is None else read_quantity(text, self.unit)

    def _is_a(self, kind: type[inspect.Type]) -> bool:
        return any(isinstance(t, kind) for t in _members(inspect.type_info(self.type)))


def settings_of(struct: type[msgspec.Struct]) -> tuple[Setting, ...]:
    """Every leaf of a settings struct, in the order of its fields."""
    return tuple(_leaves(struct, ()))


def check_values(settings: msgspec.Struct) -> None:
    """Raise SettingsError unless each value is allowed: for structs that were built by hand."""
    for setting in settings_of(type(settings)):
        value = setting.value_in(settings)
        try:
            msgspec.convert(value, setting.type)
        except msgspec.ValidationError:
            raise SettingsError(
                f"{setting.name} must be {setting.allowed}, not {setting.shown(value)}"
            ) from None


def struct_of(annotation: Any) -> type[msgspec.Struct] | None:
    """The annotation itself if it is a struct, a group of settings."""
    is_struct = isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)
    return annotation if is_struct else None


def _leaves(struct: type[msgspec.Struct], outer: tuple[str, ...]) -> Iterator[Setting]:
    for field in msgspec.structs.fields(struct):
        path = (*outer, field.name)
        inner = struct_of(field.type)
        if inner is not None:
            yield from _leaves(inner, path)
            continue
        description, extra = _metadata(inspect.type_info(field.type))
        yield Setting(
            path=path,
            type=field.type,
            default=field.default,
            description=description,
            unit=extra.get("unit"),
            secret=bool(extra.get("secret")),
            flag=extra.get("flag") or "-".join(path).replace("_", "-"),
        )


def _metadata(info: inspect.Type) -> tuple[str, dict[str, Any]]:
    """The description and the extras of a type, those of its union members included."""
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


def _words(info: inspect.Type) -> str:
    match info:
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(map(str, values))
        case inspect.IntType() | inspect.FloatType():
            number = "a whole number" if isinstance(info, inspect.IntType) else "a number"
            bounds = ((">", info.gt), (">=", info.ge), ("<", info.lt), ("<=", info.le))
            limits = [f"{sign} {bound:g}" for sign, bound in bounds if bound is not None]
            return " ".join([number, " and ".join(limits)]).rstrip()
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
        case _:
            return type(info).__name__.removesuffix("Type").lower()
