"""Check the branches that a user gives as `reduce=`, and make their composite and the rule for rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import StrategyError
from ..mapping.annotations import row_classes_of
from ..mapping.branching import NAME_RULE, Branching, is_branch_name
from ..values.row_classes import is_row_class
from ..values.schemas import row_type
from .branches import OTHER, Branches, Other, PerName, with_distinct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..memory.distinct import Distinct
    from ..reducers.reducer import Reducer

Chain: TypeAlias = "Reducer | Sequence[Reducer | Distinct]"
"""The reducers of a strategy or of a branch, as the user gave them."""

Mapped: TypeAlias = "Mapping[Any, Chain | PerName] | PerName"
"""Branches by the type of a row or by a name; `OTHER` takes the rest."""

ChangeChain: TypeAlias = "Callable[[str, Sequence[Reducer]], Sequence[Reducer]]"
"""Is called with the name of a branch ("" without branches) and its reducers."""


def declared(
    reduce: Mapped, function: Callable[..., Any] | None
) -> tuple[Branches, Branching, dict[str, Distinct]]:
    """Return the composite of branches, how rows find them, and the `Distinct` of those that have one.

    Args:
        reduce: as the user gave it.
        function: the map, whose annotation may name classes of rows.

    Raises:
        StrategyError: a key or a chain is not allowed, or the map is annotated with a class of rows that has
            no branch.
    """
    given = {OTHER: reduce} if isinstance(reduce, PerName) else dict(reduce)
    if not given:
        raise StrategyError("reduce= is empty: a strategy needs at least one reducer")
    if function is None:
        raise StrategyError(
            "reduce= has branches, so a map has to say which row goes where; set map=, or give one reducer"
        )
    chains: dict[str, tuple[Reducer, ...]] = {}
    distincts: dict[str, Distinct] = {}
    classes: dict[type, str] = {}
    others: PerName | None = None
    for key, value in given.items():
        name = _name(key)
        if name in chains:
            raise StrategyError(f"reduce= has two branches with the name {name}; rename one")
        if isinstance(value, PerName):
            if key is not OTHER:
                raise StrategyError(
                    f"reduce[{name!r}]: per_name makes branches for names without an entry; give it to OTHER"
                )
            others = value
            continue
        distinct, chains[name] = with_distinct(value, f"reduce[{name!r}]")
        if distinct is not None:
            distincts[name] = distinct
        if any(isinstance(reducer, Branches) for reducer in chains[name]):
            raise StrategyError(f"reduce[{name!r}]: a branch cannot have branches of its own")
        if isinstance(key, type):
            classes[key] = name
    rest = str(OTHER) if str(OTHER) in chains else None
    branching = Branching(frozenset(chains), classes, rest, is_open=others is not None)
    if rest is None and others is None:
        _require_branches(function, branching)
    return Branches(chains, others), branching, distincts


def with_chains(reduce: Chain | Mapped, change: ChangeChain) -> Any:
    """Return a `reduce=` of the same form, with other chains of reducers."""

    def changed(name: str, given: Chain) -> Sequence[Reducer | Distinct]:
        distinct, chain = with_distinct(given, name)
        changed = change(name, chain)
        return changed if distinct is None else [distinct, *changed]

    def made(each: PerName) -> PerName:
        return replace(each, make=lambda name: change(name, each.chain(name)))

    if isinstance(reduce, PerName):
        return made(reduce)
    if isinstance(reduce, Mapping):
        return {
            key: made(each) if isinstance(each, PerName) else changed(_name(key), each)
            for key, each in reduce.items()
        }
    return changed("", reduce)


def _name(key: object) -> str:
    if isinstance(key, Other):
        return str(key)
    if isinstance(key, type):
        if not is_row_class(key) or row_type(key).instances is dict:
            raise StrategyError(
                f"reduce= has the key {key.__name__}, which is not the class of an object: use a "
                "msgspec.Struct, dataclass or pydantic model, or a name"
            )
        return key.__name__
    if not is_branch_name(key):
        raise StrategyError(
            f"reduce= has the key {key!r}: use a class of rows, or a name of {NAME_RULE}"
        )
    return str(key)


def _require_branches(function: Callable[..., Any], branching: Branching) -> None:
    """Raise StrategyError if the annotation of the map names a class of rows that has no branch."""
    if not branching.classes:
        return
    for cls in row_classes_of(function):
        if not any(parent in branching.classes for parent in cls.__mro__):
            known = ", ".join(each.__name__ for each in branching.classes)
            raise StrategyError(
                f"reduce= has no branch for {cls.__name__}, which the map returns, only {known}; add it, or "
                "OTHER"
            )
