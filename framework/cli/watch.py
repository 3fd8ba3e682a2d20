"""Asking a worker for its status, and its rates between two answers."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from dataclasses import dataclass

import msgspec

from framework.errors import KmrError, SettingsError
from framework.status import WorkerStatus

__all__ = ["View", "Watch", "WorkerUnreachable"]

_TIMEOUT = 5.0


class WorkerUnreachable(KmrError):
    """No worker answers at the address."""


@dataclass(frozen=True, slots=True)
class View:
    """A status and what changed since the one before; rates in records per second, None at first."""

    status: WorkerStatus
    consumed_rate: float | None
    settled_rate: float | None


class Watch:
    """Looks at one worker again and again. Raises SettingsError if `url` is no HTTP address."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise SettingsError(f"--url must begin with http:// or https://, not {url!r}")
        self.url = url.rstrip("/")
        self._last: WorkerStatus | None = None

    def look(self) -> View:
        """The worker's status now; blocks for at most a few seconds.

        Raises:
            WorkerUnreachable: nothing answers, or what answers is no worker.
        """
        status = self._ask()
        last, self._last = self._last, status
        # A shorter uptime is another process behind the same address: no rates across that.
        if last is None or status.uptime <= last.uptime:
            return View(status, None, None)
        seconds = status.uptime - last.uptime
        return View(
            status,
            max(0.0, (status.consumed - last.consumed) / seconds),
            max(0.0, (status.settled - last.settled) / seconds),
        )

    def look_twice(self, interval: float) -> View:
        """The status after `interval` seconds, with rates."""
        self.look()
        time.sleep(interval)
        return self.look()

    def _ask(self) -> WorkerStatus:
        try:
            with urllib.request.urlopen(f"{self.url}/status", timeout=_TIMEOUT) as response:  # noqa: S310
                return msgspec.json.decode(response.read(), type=WorkerStatus)
        except urllib.error.HTTPError as error:
            raise WorkerUnreachable(f"{self.url}/status answers {error.code}: no worker") from error
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise WorkerUnreachable(
                f"no worker answers at {self.url} ({reason}); start it with --http-port"
            ) from error
        except msgspec.DecodeError as error:
            raise WorkerUnreachable(f"{self.url} is no worker of this version: {error}") from error
