"""Lazy imports of a package: each public name is imported when it is first used."""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.abc import InspectLoader

__all__ = ["lazy_exports"]


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` (PEP 562) of a package, made from its `TYPE_CHECKING` block.

    That block lists each public name once, as `from .module import Name as Name`. Type checkers and editors
    read it as ordinary imports; this function parses it from the source when a name is first used.
    """

    @cache
    def exports() -> dict[str, tuple[str, str]]:
        # From the loader: in an archive, as Spark ships it to executors, there is no file to open.
        loader = cast("InspectLoader", getattr(sys.modules[package].__spec__, "loader", None))
        source = loader.get_source(package) or ""
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
            return sorted(exports())
        if name.startswith("__") or name not in exports():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = exports()[name]
        value = getattr(import_module(module, package), attribute)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *exports()})

    return get, names
