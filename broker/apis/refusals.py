"""Responses to what a client may not do: they name what was asked for, each with an error code."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from broker.wire.error_codes import has_error_codes
from broker.wire.messages import default_message, entity_in

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["answer_list", "refusal"]

_MESSAGES: Final = {
    ErrorCode.topic_authorization_failed: "not authorized for this topic",
    ErrorCode.group_authorization_failed: "not authorized for this group",
    ErrorCode.transactional_id_authorization_failed: "not authorized for this transactional id",
    ErrorCode.cluster_authorization_failed: "not authorized for the cluster",
}

_NOTHING: Final = {
    **dict.fromkeys(("offset", "committed_offset", "end_offset", "low_watermark", "timestamp"), -1),
    **dict.fromkeys(("leader_epoch", "committed_leader_epoch", "generation_id"), -1),
    **dict.fromkeys(("producer_id", "producer_epoch", "node_id", "port"), -1),
    "transaction_start_time": datetime.fromtimestamp(0, UTC),
}
"""What stands where there is no such thing, if that is not what fields are by default."""

_NAMES: Final = ("name", "topic", "topic_name", "group_id", "key", "transactional_id", "user")
_INDEXES: Final = ("partition_index", "partition", "index", "partition_id")


def refusal(answer_type: Any, asked: Any, code: ErrorCode, *, lists: bool = True) -> Any:
    """The answer of this type to `asked` (an entity, a name or an index): `code` wherever there is one.

    `lists`: for every element of what was asked, as far as the answer has codes for them.
    """
    values: dict[str, object] = {}
    for field in fields(answer_type):
        element = entity_in(field.type)
        if field.type is ErrorCode:
            values[field.name] = code
        elif field.name == "error_message":
            values[field.name] = _MESSAGES.get(code)
        elif element is not None:
            if lists and has_error_codes(element):
                values[field.name] = tuple(
                    refusal(element, each, code) for each in _elements(asked)
                )
        elif field.name in _NOTHING:
            values[field.name] = _NOTHING[field.name]
        elif hasattr(asked, field.name):
            values[field.name] = getattr(asked, field.name)
        else:
            values |= _identity(field.name, asked)
    return default_message(answer_type, **values)


@cache
def answer_list(answer_type: Any) -> tuple[str, Any]:
    """Name and element type of the list in which a response answers for each of what was asked."""
    return next(
        (field.name, element)
        for field in fields(answer_type)
        if (element := entity_in(field.type)) is not None and has_error_codes(element)
    )


def _identity(name: str, asked: Any) -> dict[str, object]:
    """What was asked for, under the name that the answer has for it."""
    for names in (_NAMES, _INDEXES):
        if name not in names:
            continue
        if not is_dataclass(asked):
            return {name: asked}
        theirs = next((each for each in names if hasattr(asked, each)), None)
        return {} if theirs is None else {name: getattr(asked, theirs)}
    return {}


def _elements(asked: Any) -> Iterable[Any]:
    """The elements of the one list in what was asked."""
    lists = (getattr(asked, field.name) for field in fields(asked))
    return next((each for each in lists if isinstance(each, tuple)), ())
