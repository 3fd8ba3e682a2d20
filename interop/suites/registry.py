"""Every suite, in the order in which they are run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interop.suites.franz_go import FranzGo
from interop.suites.java import Java
from interop.suites.kafka_python import KafkaPython
from interop.suites.own import Own
from interop.suites.verifiable import Verifiable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interop.suites.contract import Suite

__all__ = ["suites"]


def suites() -> Sequence[Suite]:
    """New ones; a suite keeps nothing from one run to the next."""
    return (KafkaPython(), Verifiable(), Java(), FranzGo(), Own())
