"""The steps of a simulation as a sequence diagram: for a terminal, or as Mermaid."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .world import Step

_WIDTH: Final = 26
_ANNOUNCED: Final = re.compile(r'=(\d+) \{"kmr":1,"first":\d+,"last":(\d+)[^}]*\}')


def _lanes(steps: Sequence[Step]) -> list[str]:
    """Return who takes part: the test, the members in order of their starts, then the servers."""
    seen = dict.fromkeys(name for step in steps for name in (step.source, step.target))
    members = [name for name in seen if name.startswith("member")]
    others = [name for name in seen if name not in members and name not in ("test", "check")]
    return ["test", *members, *others]


def _short(text: str) -> str:
    """Shorten announcements: the offset, and the last one of the range."""
    return _ANNOUNCED.sub(r"=\1 announcing ..\2", text)


def draw_text(steps: Sequence[Step]) -> list[str]:
    """Draw lanes from left to right and the time downwards; one line of arrows and one of words per step."""
    lanes = _lanes(steps)
    at = {name: 9 + number * _WIDTH for number, name in enumerate(lanes)}
    lines = [" " * 9 + "".join(name[: _WIDTH - 2].ljust(_WIDTH) for name in lanes)]
    for step in steps:
        line = list(" " * 9 + "".join("|".ljust(_WIDTH) for _ in lanes))
        source, target = at.get(step.source, 9), at.get(step.target, 9)
        if source < target:
            line[source + 1 : target] = "-" * (target - source - 2) + ">"
        elif target < source:
            line[target + 1 : source] = "<" + "-" * (source - target - 2)
        else:
            line[source] = "*"
        lines.append(f"{step.at:7.3f}  " + "".join(line)[9:].rstrip() + f"  {_short(step.text)}")
    return lines


def draw_mermaid(steps: Sequence[Step]) -> list[str]:
    """Draw a `sequenceDiagram`."""
    names = {name: f"p{number}" for number, name in enumerate(_lanes(steps))}
    lines = ["sequenceDiagram"]
    lines += [f"    participant {short} as {name}" for name, short in names.items()]
    for step in steps:
        text = f"{step.at:.3f} s: {_short(step.text)}".replace(";", ",").replace("#", "no. ")
        source, target = names.get(step.source, "p0"), names.get(step.target, "p0")
        if source == target:
            lines.append(f"    Note over {source}: {text}")
        else:
            lines.append(f"    {source}->>{target}: {text}")
    return lines
