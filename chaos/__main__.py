"""`python -m chaos`: break the system on purpose, and count."""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from rich.console import Console

from chaos.course import carry_out
from chaos.letters import KILLS, LETTERS, replay_under_kills
from chaos.report import write_report
from chaos.scenarios import LONG, SCENARIOS, SHORT, SLOW
from chaos.shape import Outside
from chaos.soak import soak
from kmr.chaos.services import ServiceFailed
from kmr.config.schema import SECONDS, parse_quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.course import Run
    from chaos.scenarios import Scenario

_SHORTEST_SOAK: Final = 30  # seconds; shorter ones have too few samples for a verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run scenarios; 0: every verdict is ok, 1: one is not, 2: wrong usage."""
    options = _parser().parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False)
    if options.list:
        _list(console)
        return 0
    scenarios = (
        [soak(options.soak)]
        if options.soak
        else [SCENARIOS[name] for name in options.scenario]
        or (LONG if options.long else [*SHORT, *SLOW])
    )
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it cannot know that we meant it
    verdicts = []
    for scenario in scenarios:
        try:
            run = anyio.run(_run, scenario, seed, options, console)
        except ServiceFailed as error:
            console.print(f"[red]{scenario.name} could not begin:[/] {error}")
            verdicts.append("unknown")
        except KeyboardInterrupt:
            return 130
        else:
            verdicts.append(run.verdict)
    if options.long and not options.scenario:
        console.print(
            f"\n[bold]letters[/]: {LETTERS:,} dead letters, their replay killed {KILLS} times"
        )
        whole = anyio.run(replay_under_kills, LETTERS, KILLS, console.print)
        verdicts.append("ok" if whole else "violated")
        console.print(f"[bold]letters: {verdicts[-1]}[/]")
    return 0 if set(verdicts) == {"ok"} else 1


async def _run(scenario: Scenario, seed: int, options: argparse.Namespace, console: Console) -> Run:
    outside = Outside()
    if options.bootstrap_servers or options.clickhouse_url:
        suffix = f"_{uuid.uuid4().hex[:8]}"
        outside = Outside(
            options.bootstrap_servers, options.clickhouse_url, suffix, options.replicas
        )
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:6.1f}[/]  {text}", markup=True)

    console.print(f"\n[bold]{scenario.name}[/], seed {seed}: {scenario.about}")
    data = Path(tempfile.mkdtemp(prefix="kmr-chaos-"))
    target = Path(options.output) / f"{scenario.name}-{seed}"
    try:
        run = await carry_out(scenario, seed, data, outside, say)
        summary = write_report(run, target)
    finally:
        if (data / "logs").is_dir():
            shutil.copytree(data / "logs", target / "logs", dirs_exist_ok=True)
        shutil.rmtree(data, ignore_errors=True)
    _show(console, run, summary)
    return run


def _show(console: Console, run: Run, summary: Path) -> None:
    for result in run.results:
        expected = result.checker in run.scenario.finds
        good = result.verdict == ("violated" if expected else "ok")
        verdict = f"[{'green' if good else 'red'}]{result.verdict:<9}[/]"
        note = " (as expected)" if expected and good else ""
        console.print(f"  {verdict} {result.group:<10} {result.checker:<13} {result.detail}{note}")
        for offence in result.offences[:5]:
            console.print(f"{'':<36}{offence}", markup=False)
    colour = "green" if run.verdict == "ok" else "red"
    console.print(
        f"[{colour} bold]{run.scenario.name}: {run.verdict}[/] "
        f"in {run.seconds:.0f} s, seed {run.seed}; report: {summary}"
    )


def _list(console: Console) -> None:
    for title, scenarios in (("short", [*SHORT, *SLOW]), ("long", LONG)):
        console.print(f"[bold]{title}[/]")
        for scenario in scenarios:
            console.print(f"  {scenario.name:<22}{scenario.about}")


def _seconds(text: str) -> float:
    try:
        seconds = parse_quantity(text, SECONDS)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds < _SHORTEST_SOAK:
        raise argparse.ArgumentTypeError(f"{text}: a soak takes {_SHORTEST_SOAK} s or more")
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the scenarios")
    parser.add_argument(
        "--scenario",
        action="append",
        default=[],
        choices=SCENARIOS,
        metavar="NAME",
        help="run this one; may be given more than once",
    )
    parser.add_argument("--long", action="store_true", help="the long scenarios")
    parser.add_argument(
        "--soak",
        type=_seconds,
        metavar="TIME",
        help="a steady load for so long (30m), with rebalances; growing memory, descriptors, threads or "
        "tasks are a failure",
    )
    parser.add_argument("--seed", type=int, help="reproduces a schedule; default: a new one")
    parser.add_argument(
        "--bootstrap-servers",
        metavar="HOST:PORT",
        help="a broker that is there already, such as Apache Kafka; it is not harmed",
    )
    parser.add_argument(
        "--replicas",
        type=int,
        default=1,
        metavar="N",
        help="the replication factor of the topics, where that broker is a cluster [%(default)s]",
    )
    parser.add_argument(
        "--clickhouse-url",
        metavar="URL",
        help="a ClickHouse that is there already; it is not harmed",
    )
    parser.add_argument(
        "--output", default=".kmr/chaos", metavar="DIR", help="for reports [%(default)s]"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
