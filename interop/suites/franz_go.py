"""franz-go's own tests of its Kafka client, as its Go module ships them: groups, transactions, admin.

`interop/go` pins the module's version and the checksums of its dependencies; the go command fetches them.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from demo.processes import ChildFailed, Children, give_up_after
from interop.suites.contract import Outcome, SuiteNotRun
from interop.suites.exclusions import Exclusions, read_exclusions

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FranzGo", "outcome"]

_MODULE: Final = Path(__file__).parents[1] / "go"
_PACKAGE: Final = "github.com/twmb/franz-go"
_PATIENCE: Final = 1800.0  # seconds for a whole run, with the fetching and compiling before it
_TAIL: Final = 20  # lines of a failed test's output


class FranzGo:
    """The tests of its package kgo, those of the client alone among them."""

    name = "franz-go"
    broker: Sequence[str] = ("--max-partitions", "20000")

    @property
    def about(self) -> str:
        """With the version that is locked."""
        found = re.search(
            rf"{re.escape(_PACKAGE)} (v\S+)", (_MODULE / "go.mod").read_text(), re.ASCII
        )
        return f"the tests of the Go client {_PACKAGE} {found[1] if found else ''}"

    async def run(self, bootstrap_servers: str, directory: Path) -> Outcome:
        """Fetch, compile, run, and parse the output."""
        go = shutil.which("go")
        if go is None:
            raise SuiteNotRun(
                "there is no go command: install Go 1.26 or later (https://go.dev/dl)"
            )
        command = [go, "test", "-json", "-count=1", f"-timeout={_PATIENCE:.0f}s", "-parallel=4"]
        environment = {
            "KGO_SEEDS": bootstrap_servers,
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": "50000",
            "KGO_TEST_UNSAFE": "1",  # transactions that go over into the next one
            "KGO_LOG_LEVEL": "none",
        }
        faults: dict[str, str] = {}
        async with Children(directory) as children:
            child = await children.spawn(
                "go",
                [*command, "-run=^Test", f"{_PACKAGE}/pkg/kgo"],
                directory=_MODULE,
                environment=environment,
            )
            try:
                with give_up_after(_PATIENCE, "go test does not end"):
                    await child.wait()
            except ChildFailed as error:
                faults["go test"] = str(error)
            await child.stop()
        exclusions = read_exclusions().get(self.name, Exclusions({}))
        found = outcome(child.log.read_text(errors="replace"), exclusions)
        if not found.passed and not found.failed:
            raise SuiteNotRun(f"go test could not run any test:\n{child.tail()}")
        if found.failed:
            faults.clear()  # it says no more than that
        return Outcome(found.passed, {**found.failed, **faults}, found.excluded)


def outcome(printed: str, exclusions: Exclusions) -> Outcome:
    """How each test went, by what `go test -json` printed; other lines are the go command's.

    A test that skips itself counts as failed unless it is excluded with a reason.
    """
    passed: list[str] = []
    failed: dict[str, str] = {}
    excluded: dict[str, str] = {}
    said: dict[str, list[str]] = {}
    for line in printed.splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        test, action = event.get("Test"), event.get("Action")
        if test is None:
            continue
        if action == "output":
            said.setdefault(test, []).append(event["Output"].rstrip())
            del said[test][:-_TAIL]
        elif action == "run":
            failed[test] = "it did not end"
        elif action in ("pass", "fail", "skip"):
            del failed[test]
            reason = exclusions.reason(test)
            if action == "pass":
                passed.append(test)
            elif action == "skip" and reason is not None:
                excluded[test] = reason
            else:
                failed[test] = "\n".join(said.get(test, [f"{action}, without a word"]))
    return Outcome(passed, failed, excluded)
