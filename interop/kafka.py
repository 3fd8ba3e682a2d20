"""`python -m interop.kafka`: the framework against Apache Kafka, and both brokers' answers compared.

Apache Kafka comes from Maven Central, into the user's cache, every jar verified. Exit codes: 0 every check
passed, 1 one failed, 2 wrong usage, 3 there is no Apache Kafka to check against (or no Java).
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import sys
import tempfile
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from rich.console import Console
from rich.markup import escape

from chaos.course import carry_out
from chaos.report import write_report
from chaos.scenarios import SCENARIOS
from chaos.shape import Outside
from demo.processes import Children
from interop.answers.beside import Beside
from interop.checks import CheckFailed, Checks
from interop.failover import FAILOVER, failover_of
from interop.lock import LOCK
from interop.maven import FetchFailed, fetch, read_lock
from interop.nodes import Cluster, NodeFailed
from interop.pipeline import Pipeline
from kmr.spark.jvm import JvmNotFound, cache_directory, find_jvm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from chaos.course import Run
    from chaos.scenarios import Scenario

__all__ = ["main"]

_SHORT: Final = ("crashes", "network", "storm", "topic-to-topic", "commit-after-insert")
_LONG: Final = ("everything", "rebalance-storm", "at-least-once", "at-most-once", "resume-from-max")
_PARTS: Final = ("settings", "pipeline", *_SHORT, *_LONG, FAILOVER.name)
_NO_KAFKA: Final = 3
_WIDTH: Final = 180  # of the table, where there is no terminal


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch, start, check, print; see the module for the exit codes."""
    options = _parser().parse_args(arguments)
    width = None if sys.stdout.isatty() else _WIDTH
    console = Console(soft_wrap=True, highlight=False, width=width)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it cannot know that nodes are killed
    parts = options.only or [
        "settings",
        "pipeline",
        *_SHORT,
        *(_LONG if options.long else ()),
        FAILOVER.name,
    ]
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    try:
        return anyio.run(_run, parts, seed, Path(options.output), console)
    except (FetchFailed, JvmNotFound, NodeFailed) as error:
        console.print("[red]Apache Kafka cannot be started:[/]", end=" ")
        console.print(str(error), markup=False)
        return _NO_KAFKA
    except KeyboardInterrupt:
        return 130


async def _run(parts: Sequence[str], seed: int, output: Path, console: Console) -> int:
    lock = read_lock(LOCK)
    (version,) = {each.version for each in lock if each.name == "kafka-clients"}
    jars = await anyio.to_thread.run_sync(fetch, lock, cache_directory(os.environ) / "maven")
    java = find_jvm()
    console.print(f"Apache Kafka {version}, {len(jars)} jars; Java {java.version} ({java.origin})")
    data = Path(tempfile.mkdtemp(prefix="kmr-interop-"))
    run = _Run(java.java, jars, data, output, seed, Checks(console), console)
    try:
        await run.one_node([part for part in parts if part != FAILOVER.name])
        if FAILOVER.name in parts:
            await run.three_nodes()
    finally:
        _keep_logs(data, output)
        shutil.rmtree(data, ignore_errors=True)
    console.print(run.checks.table(f"kafka-map-reduce against Apache Kafka {version}, seed {seed}"))
    return 0 if run.checks.passed else 1


def _keep_logs(data: Path, output: Path) -> None:
    """The nodes' logs, which are beside their data."""
    for log in data.glob("*/*.log"):
        kept = output / "nodes" / log.parent.name
        kept.mkdir(parents=True, exist_ok=True)
        shutil.copy(log, kept)


class _Run:
    """Clusters, and the checks that run against each."""

    def __init__(
        self,
        java: Path,
        jars: Sequence[Path],
        data: Path,
        output: Path,
        seed: int,
        checks: Checks,
        console: Console,
    ) -> None:
        self.checks = checks
        self._java = java
        self._jars = jars
        self._data = data
        self._output = output
        self._seed = seed
        self._console = console

    async def one_node(self, parts: Sequence[str]) -> None:
        """Both brokers' answers, the pipeline, and the chaos suite's scenarios, as far as they do no harm."""
        if not parts:
            return
        subject = "one node"
        async with self._cluster(subject, 1) as cluster:
            if "settings" in parts:
                directory, logs = self._data / "settings", self._output / "settings"
                beside = Beside(cluster.bootstrap_servers, directory, logs)
                await beside.check(self.checks, subject)
            if "pipeline" in parts:
                directory = self._data / "pipeline"
                async with Children(self._output / "pipeline") as children:
                    pipeline = Pipeline(cluster.bootstrap_servers, directory, children)
                    await pipeline.check(self.checks, subject)
            for part in parts:
                if part in SCENARIOS:
                    await self._scenario(
                        subject, SCENARIOS[part], Outside(cluster.bootstrap_servers)
                    )

    async def three_nodes(self) -> None:
        """The workers go on when nodes are killed."""
        subject = "three nodes"
        async with self._cluster(subject, 3) as cluster:
            outside = Outside(cluster.bootstrap_servers, replicas=cluster.replicas)
            await self._scenario(subject, failover_of(cluster), outside)

    @asynccontextmanager
    async def _cluster(self, subject: str, nodes: int) -> AsyncIterator[Cluster]:
        began = anyio.current_time()
        directory = self._data / subject.replace(" ", "-")
        async with Cluster(self._java, self._jars, directory, nodes) as cluster:
            seconds = anyio.current_time() - began
            self._console.print(f"{subject} up in {seconds:.1f} s: {cluster.bootstrap_servers}")
            yield cluster

    async def _scenario(self, subject: str, scenario: Scenario, outside: Outside) -> None:
        await self.checks.run(subject, f"chaos: {scenario.name}", self._chaos, scenario, outside)

    async def _chaos(self, scenario: Scenario, outside: Outside) -> str:
        def say(text: str) -> None:
            self._console.print(f"  [dim]{scenario.name}: {escape(text)}[/]")

        suffix = f"_{uuid.uuid4().hex[:8]}"
        outside = replace(outside, suffix=suffix)
        directory = self._data / f"{scenario.name}{suffix}"
        report = self._output / f"{scenario.name}-{self._seed}"
        run = await carry_out(scenario, self._seed, directory, outside, say)
        summary = write_report(run, report)
        shutil.copytree(directory / "logs", report / "logs", dirs_exist_ok=True)
        if run.verdict != "ok":
            offending = [
                f"{each.checker}: {each.detail}" for each in run.results if each.verdict != "ok"
            ]
            raise CheckFailed("\n".join([f"{run.verdict}; report: {summary}", *offending]))
        return _told(run)


def _told(run: Run) -> str:
    """What struck, and how many records are missing and doubled; some are where that is legal."""
    faults = dict.fromkeys(strike.fault for strike in run.schedule)
    acknowledged = run.history.produced["outcome"].to_pylist().count("acked")
    missing, doubled = (
        sum(result.count for result in run.results if result.checker == checker)
        for checker in ("lost", "duplicates")
    )
    told = (
        f"{acknowledged:,} records, {missing:,} missing, {doubled:,} doubled; {', '.join(faults)}"
    )
    return f"{told}; the guarantee is off, and that was found" if run.found else told


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m interop.kafka", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        choices=_PARTS,
        metavar="PART",
        help=f"run this one; may be given more than once: {', '.join(_PARTS)}",
    )
    parser.add_argument("--long", action="store_true", help="the chaos suite's long scenarios too")
    parser.add_argument("--seed", type=int, help="reproduces the schedules; default: a new one")
    parser.add_argument(
        "--output", default=".kmr/interop", metavar="DIR", help="for reports and logs [%(default)s]"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
