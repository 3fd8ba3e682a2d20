"""Finding the user's strategy: `module:attribute`, with errors that point at the user's own line."""

from __future__ import annotations

import difflib
import importlib
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

from framework.errors import StrategyError
from framework.strategy import Strategy

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["load_strategy"]

_NOT_THE_USERS: Final = (
    "<",  # <frozen importlib>, and <string>: the methods that dataclasses writes
    *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)


def load_strategy(path: str) -> Strategy:
    """The strategy at `module:attribute`, or `module` for its attribute `strategy`.

    The current directory comes first on the path of modules.

    Raises:
        StrategyError: there is no such module or attribute, the module fails (with file and line), or
            the attribute is no strategy.
    """
    name, _, attribute = path.partition(":")
    attribute = attribute or "strategy"
    if name.endswith(".py") or "/" in name:
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        raise StrategyError(f"{path} names a file; name the module instead: {module}:{attribute}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return _attribute(_module(name), attribute)


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise StrategyError(
                f"there is no module {error.name}, neither in {Path.cwd()} nor installed"
            ) from error
        raise StrategyError(f"cannot import {name}: {error}{_where(error)}") from error
    except SyntaxError as error:
        raise StrategyError(
            f"cannot import {name}: {error.msg} in {error.filename}, line {error.lineno}: "
            f"{(error.text or '').strip()}"
        ) from error
    except StrategyError as error:
        raise StrategyError(f"{error}{_where(error)}") from error
    except Exception as error:
        raise StrategyError(
            f"cannot import {name}: {type(error).__name__}: {error}{_where(error)}"
        ) from error


def _where(error: BaseException) -> str:
    """The line of the user's code that an error came through last."""
    users = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_THE_USERS)
    ]
    if not users:
        return ""
    return f" in {users[-1].filename}, line {users[-1].lineno}: {users[-1].line}"


def _attribute(module: ModuleType, name: str) -> Strategy:
    found = getattr(module, name, None)
    if isinstance(found, Strategy):
        return found
    strategies = [key for key, value in vars(module).items() if isinstance(value, Strategy)]
    near = difflib.get_close_matches(name, strategies, 1, 0) if strategies else []
    hint = f"; did you mean {module.__name__}:{near[0]}?" if near else ""
    if found is None:
        raise StrategyError(f"module {module.__name__} has no attribute {name}{hint}")
    raise StrategyError(
        f"{module.__name__}:{name} is of type {type(found).__name__}, not a Strategy{hint}"
    )
