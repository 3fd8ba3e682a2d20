"""Names that topics may have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from broker.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["INTERNAL_TOPICS", "check_collision", "check_topic_name"]

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""Names that belong to the broker: clients can neither create nor delete them, nor produce to them."""

_MAX_NAME = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raises RequestError (INVALID_TOPIC_EXCEPTION) unless clients may create a topic of this name."""
    if not name:
        problem = "is empty"
    elif name in {".", ".."}:
        problem = "must not be . or .."
    elif len(name) > _MAX_NAME:
        problem = f"has {len(name)} characters, more than {_MAX_NAME}"
    elif not _NAME.fullmatch(name):
        problem = "has characters other than letters, digits, . _ -"
    elif name in INTERNAL_TOPICS:
        problem = "belongs to the broker"
    else:
        return
    shown = name if len(name) <= _MAX_NAME else f"{name[:32]}..."
    raise _invalid(f"the topic name {shown!r} {problem}")


def check_collision(name: str, others: Iterable[str]) -> None:
    """Raises RequestError (INVALID_TOPIC_EXCEPTION) when another topic differs by . and _ only.

    Kafka refuses this too: in the names of metrics both characters are the same.
    """
    if "." not in name and "_" not in name:
        return
    plain = name.replace(".", "_")
    for other in others:
        if other != name and other.replace(".", "_") == plain:
            raise _invalid(f"the topic name {name!r} differs from {other!r} in nothing but . and _")


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.invalid_topic_exception, message)
