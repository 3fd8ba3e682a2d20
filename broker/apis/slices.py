"""Long answers in slices: other clients have their turns of the event loop in between."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["SLICE_SECONDS", "Turns", "answer_each", "answer_partitions"]

SLICE_SECONDS = 0.005
"""Time after which one request gives way to others."""

Element = TypeVar("Element")
Result = TypeVar("Result")
Topic = TypeVar("Topic")


class Turns:
    """The turns of the event loop that one request takes."""

    def __init__(self) -> None:
        self._until = monotonic() + SLICE_SECONDS

    async def give_way(self) -> None:
        """Let others have the loop if this turn has taken long; call it between two elements."""
        if monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = monotonic() + SLICE_SECONDS


async def answer_each(
    answer: Callable[[Element], Result], elements: Iterable[Element]
) -> tuple[Result, ...]:
    """Answer each element of a request; what `answer` reads may change between two of them."""
    turns = Turns()
    results = []
    for each in elements:
        results.append(answer(each))
        await turns.give_way()
    return tuple(results)


async def answer_partitions(
    topic_type: type[Topic], topics: Iterable[Any], answer: Callable[[Any, Any], object]
) -> tuple[Topic, ...]:
    """Answer each partition of the topics of a request: `answer` is called with the topic's name and it.

    In every request and response such a topic has two fields, the name and the list of partitions.
    """
    name, partitions = (field.name for field in fields(cast("Any", topic_type)))
    turns = Turns()
    answers = []
    for asked in topics:
        topic, elements = (getattr(asked, field.name) for field in fields(asked))
        results = []
        for each in elements:
            results.append(answer(topic, each))
            await turns.give_way()
        answers.append(topic_type(**{name: topic, partitions: tuple(results)}))
    return tuple(answers)
