"""Compares two brokers' answers; each difference has an explanation, or is one that fails."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from interop.answers.deviations import DIFFERENCES, REFUSALS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from interop.answers.asking import Answers
    from interop.answers.deviations import Difference, Refusal

__all__ = ["Comparison", "compared"]

_ABSENT: Final = "(not in the answer)"
_AFTER: Final = "DescribeConfigs after "


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two brokers answered.

    Attributes:
        fields: how many fields were compared.
        explained: how many differences each entry of the tables explains.
        unexplained: the other differences, each a line.
    """

    fields: int
    explained: Counter[Difference | Refusal] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)

    @property
    def unused(self) -> list[str]:
        """The entries of the tables that explain nothing."""
        return [str(each) for each in (*REFUSALS, *DIFFERENCES) if each not in self.explained]


def compared(ours: Answers, theirs: Answers) -> Comparison:
    """Compare the bundled broker's answers with Apache Kafka's."""
    paths = dict.fromkeys((*ours, *theirs))
    result = Comparison(len(paths))
    refused = {path[:2] for path in _refused_here(ours, theirs)}
    for path in paths:
        our, their = ours.get(path, _ABSENT), theirs.get(path, _ABSENT)
        if our == their:
            continue
        api, case = path[:2]
        reason: Difference | Refusal | None
        if (api.removeprefix(_AFTER), case) in refused:
            reason = next((each for each in REFUSALS if fnmatchcase(case, each.cases)), None)
        else:
            reason = _difference(path, our)
        if reason is None:
            result.unexplained.append(f"{', '.join(path)}: {our!r}, Apache Kafka {their!r}")
        else:
            result.explained[reason] += 1
    return result


def _refused_here(ours: Answers, theirs: Answers) -> Iterator[tuple[str, ...]]:
    """The codes of refusals of which Apache Kafka knows nothing."""
    for path, code in ours.items():
        if path[2:] == ("error_code",) and code != "none" and theirs.get(path) == "none":
            yield path


def _difference(path: Sequence[str], our: object) -> Difference | None:
    _, case, *names = path
    for each in DIFFERENCES:
        if (
            fnmatchcase("/".join(names), each.field)
            and fnmatchcase(case, each.cases)
            and fnmatchcase(str(our), each.ours)
        ):
            return each
    return None
