"""Workers of these tests keep their log: a flush that is repeated says there why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import structlog

from .driver import LOG

if TYPE_CHECKING:
    from collections.abc import MutableMapping


def _keep(_logger: object, _method: str, event: MutableMapping[str, Any]) -> NoReturn:
    LOG.append(dict(event))
    raise structlog.DropEvent


@pytest.fixture(autouse=True)
def _log_is_kept() -> None:
    """Undone by the fixture `_logs_as_before` of all tests."""
    structlog.configure(processors=[_keep], cache_logger_on_first_use=False)
