"""What happens to the processes of a storm, in order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class ProcessRecord:
    """A `Recorder` that keeps processes and what was noticed, and forgets the rest.

    Attributes:
        processes: a line for each: name, pid, ending, code.
        noticed: what happened that we have not caused.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say` is called with what is noticed."""
        self.processes: list[dict[str, Any]] = []
        self.noticed: list[str] = []
        self._say = say

    def line(self, table: str, **values: object) -> dict[str, Any]:
        if table == "processes":
            self.processes.append(values)
        return values

    def event(self, kind: str, name: str, detail: str = "") -> dict[str, Any]:
        if kind == "noticed":
            self.noticed.append(f"{name}: {detail}")
            self._say(f"noticed: {name} {detail.splitlines()[0] if detail else ''}")
        return {"kind": kind, "name": name, "detail": detail, "time": time.time_ns()}

    def died(self) -> list[str]:
        """The processes that ended without a signal of ours, or did not end in time after one."""
        return [
            f"{line['name']} (process {line['pid']}) with exit code {line['code']}"
            for line in self.processes
            if line["ending"] == "died"
        ]
