"""Who a producer is."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ProducerIdentity"]


class ProducerIdentity(NamedTuple):
    """A producer: of two with the same id, the one with the higher epoch fences off the other."""

    producer_id: int
    epoch: int
