"""Lazy imports of a module: each public name is imported when it is first used."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from .errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec


class _Missing(type):
    """Metaclass of the stand-in for a name whose extra is not installed: its use raises MissingExtra."""

    missing: str

    def __call__(cls, *_args: Any, **_options: Any) -> Any:
        raise MissingExtra(cls.missing)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise MissingExtra(cls.missing)


def lazy_exports(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` (PEP 562) of a module, made from its `TYPE_CHECKING` block.

    That block lists each public name once, as `from .module import Name as Name`. Type checkers and editors
    read it as ordinary imports; this function parses it from the source when a name is first used.
    """

    @cache
    def exports() -> dict[str, tuple[str, str]]:
        import ast
        from pathlib import Path

        spec = cast("ModuleSpec", sys.modules[module].__spec__)
        # From the loader: in an archive, as Spark ships it to executors, there is no file to open. But that
        # of pytest, which rewrites the modules of its plugins' packages, has no source to give.
        get_source = getattr(spec.loader, "get_source", None)
        source = get_source(module) if get_source else Path(str(spec.origin)).read_text("utf-8")
        return {
            alias.asname or alias.name: ("." * node.level + (node.module or ""), alias.name)
            for block in ast.parse(source).body
            if isinstance(block, ast.If)
            for node in block.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    def get(name: str) -> Any:
        if name == "__all__":  # `from kmr import *`
            for each in exports():
                bind(each)
            return sorted(exports())
        if name.startswith("__") or name not in exports():
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        source, attribute = exports()[name]
        value = getattr(import_module(source, sys.modules[module].__package__), attribute)
        setattr(sys.modules[module], name, value)
        return value

    def bind(name: str) -> None:
        try:
            get(name)
        except MissingExtra as error:
            setattr(sys.modules[module], name, _Missing(name, (), {"missing": str(error)}))

    def names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *exports()})

    return get, names
