"""The worker's contact with the brokers: it waits for one at the start, and asks why one falls silent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio
import structlog

from .errors import BrokerUnavailable, ConsumerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .kafka.consumer import Consumer
    from .observe.metrics import Metrics

_INTERVAL: Final = 1.0  # seconds
_REFUSED: Final = 10.0  # seconds, after which a refusal ends the worker
_SILENT: Final = 10.0  # seconds, after which a silence without another reason is a problem

_log = structlog.get_logger(__name__)


class BrokerContact:
    """Knows whether the brokers answer, and why they do not.

    A broker that is away may come back: the worker waits for it, and is not ready. A refusal of our user or
    of a certificate stays as it is until the worker is started with other settings, so the worker ends.

    Args:
        timeout: seconds that the start waits for a broker.

    Attributes:
        problem: why no broker answers; None while one does.
    """

    def __init__(self, consumer: Consumer, metrics: Metrics, *, timeout: float) -> None:
        self._consumer = consumer
        self._metrics = metrics
        self._timeout = timeout
        self._refused_at: float | None = None
        self.problem: str | None = None

    async def until_answered(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Ask until a broker answers. Raises BrokerUnavailable after `timeout` seconds.

        The last attempt begins after that: one that the machine stood still in says nothing of the broker.
        """
        give_up = anyio.current_time() + self._timeout
        while True:
            is_last = anyio.current_time() >= give_up
            try:
                await ask()
            except BrokerUnavailable as error:
                if is_last:
                    raise
                self._note(str(error), at_most_seconds=self._timeout)
            else:
                self._note(None)
                return
            await anyio.sleep(_INTERVAL)

    async def watch(self) -> None:
        """Look every second whether the group and the partitions answer; ask for the reason where not.

        Raises:
            ConsumerError: for ten seconds each new connection was refused. A broker that starts may not know
                its users yet, so the first refusal is not enough.
        """
        silent_since: float | None = None
        while True:
            await anyio.sleep(_INTERVAL)
            silent, now = self._consumer.silent, anyio.current_time()
            if silent is None:
                silent_since = self._refused_at = None
                self._note(None)
                continue
            silent_since = now if silent_since is None else silent_since
            self._note(await self._reason() or (silent if now - silent_since > _SILENT else None))

    async def _reason(self) -> str | None:
        """Return why a new connection is not answered; None if it is."""
        try:
            await self._consumer.reach()
        except BrokerUnavailable as error:
            self._refused_at = None
            return str(error)
        except ConsumerError as error:
            now = anyio.current_time()
            self._refused_at = now if self._refused_at is None else self._refused_at
            if now - self._refused_at >= _REFUSED:
                raise ConsumerError(
                    f"{error}. It was refused for {now - self._refused_at:.0f} s while the worker ran: start "
                    "the worker with the present password or certificate"
                ) from error
            return str(error)
        self._refused_at = None
        return None

    def _note(self, problem: str | None, **limits: float) -> None:
        """Keep the problem; log each once."""
        if problem == self.problem:
            return
        if problem is not None:
            _log.warning("waiting for a broker", reason=problem, **limits)
        else:
            _log.info("a broker answers again")
        self.problem = problem
        self._metrics.broker_silent.set(problem is not None)
