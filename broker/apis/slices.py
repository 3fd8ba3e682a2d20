"""Answers about the partitions of a request, in slices.

Every handler goes through the lists of its request, and through those that it lists itself, by `in_turns`.
"""

from __future__ import annotations

from dataclasses import fields
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..turns import in_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .api import RequestContext

Topic = TypeVar("Topic")
Result = TypeVar("Result")

_FEW_PARTITIONS = 500  # are quicker than the way to another thread


async def answer_partitions(
    topic_type: type[Topic], topics: Iterable[Any], answer: Callable[[Any, Any], object]
) -> tuple[Topic, ...]:
    """Answer each partition of the topics of a request: `answer` is called with the topic's name and it.

    `answer` may be a coroutine function. In every request and response such a topic has two fields, the name
    and the list of partitions.
    """
    name, partitions = (field.name for field in fields(cast("Any", topic_type)))
    answers = []
    async for asked in in_turns(topics):
        topic, elements = (getattr(asked, field.name) for field in fields(asked))
        results = []
        async for each in in_turns(elements):
            result = answer(topic, each)
            results.append(await result if isawaitable(result) else result)
        answers.append(topic_type(**{name: topic, partitions: tuple(results)}))
    return tuple(answers)


async def computed(
    context: RequestContext, topics: Iterable[Any], work: Callable[[], Result]
) -> Result:
    """Return what `work` makes of these topics: in another thread if they have many partitions."""
    partitions = 0
    async for topic in in_turns(topics):
        partitions += 1 + len(getattr(topic, fields(topic)[1].name))
    if partitions <= _FEW_PARTITIONS:
        return work()
    return await context.services.compute(work)
