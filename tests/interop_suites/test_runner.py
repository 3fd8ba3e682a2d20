"""Each suite runs against its own broker; errors of either are reported."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from rich.console import Console

from demo.processes import Children
from interop import __main__ as command
from interop.suites.contract import Outcome, SuiteNotRun
from interop.suites.results import NOT_RUN, PASSED
from interop.suites.runner import run_suites
from interop.suites.running import merged, run_pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Topics:
    """A suite that creates a topic, and finds that there was none."""

    about = "creates a topic"

    def __init__(self, name: str, broker: Sequence[str] = ()) -> None:
        self.name = name
        self.broker = broker

    async def run(self, bootstrap_servers: str, directory: Path) -> Outcome:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
        await admin.start()
        before = await admin.list_topics()
        await admin.close()
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers)
        await producer.start()
        partitions = await producer.partitions_for("topic")
        await producer.stop()
        failed = {"empty": f"there is {before}"} if before else {}
        if left := _files(directory):
            failed["clean"] = f"there are {left}"
        (directory / "left").touch()
        return Outcome([f"partitions {len(partitions)}"], failed)


class Obstacle:
    """A suite that cannot be had."""

    name = "obstacle"
    about = "is not there"
    broker: Sequence[str] = ()

    async def run(self, bootstrap_servers: str, directory: Path) -> Outcome:
        raise SuiteNotRun("the index cannot be reached")


class Faulty(Obstacle):
    """A suite with a bug."""

    name = "faulty"

    async def run(self, bootstrap_servers: str, directory: Path) -> Outcome:
        raise KeyError("a bug")


async def test_a_bug_of_one_suite_is_its_failure_and_the_next_are_run(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    faulty, topics = await run_suites([Faulty(), Topics("topics")], tmp_path, console)
    assert faulty.outcome is not None
    assert "KeyError: 'a bug'" in faulty.outcome.failed["the suite itself"]
    assert topics.outcome == Outcome(["partitions 1"])


async def test_each_suite_has_a_new_broker_with_the_settings_that_it_asks_for(
    tmp_path: Path,
) -> None:
    console = Console(file=io.StringIO())
    each = [Topics("first", ["--partitions", "3"]), Topics("second")]
    first, second = await run_suites(each, tmp_path, console)
    assert first.outcome == Outcome(["partitions 3"])
    assert second.outcome == Outcome(["partitions 1"])
    assert not _files(tmp_path)  # what passed leaves nothing


async def test_a_broker_that_cannot_start_is_an_obstacle_not_a_traceback(tmp_path: Path) -> None:
    suite = Topics("suite", ["--partitions", "0"])
    (result,) = await run_suites([suite], tmp_path, Console(file=io.StringIO()))
    assert result.outcome is None
    assert "broker ended with exit code 2" in result.obstacle
    assert (tmp_path / "suite" / "broker.log").exists()


@pytest.mark.parametrize(
    ("chosen", "code", "line"),
    [
        ([], NOT_RUN, "not run: the index cannot be reached"),
        (["--only", "topics"], PASSED, "1 passed, 0 failed, 0 excluded"),
        (["--only", "obstacle"], NOT_RUN, "not run: the index cannot be reached"),
        (["--list"], PASSED, "obstacle: is not there"),
    ],
)
def test_the_command_runs_all_suites_or_those_that_are_chosen(
    chosen: list[str],
    code: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "suites", lambda: (Topics("topics"), Obstacle()))
    arguments = [*chosen, "--output", str(tmp_path / "out")]
    assert command.main(arguments) == code
    assert line in capfd.readouterr().out
    assert (tmp_path / "out" / "clients.md").exists() == (chosen != ["--list"])


def test_an_unknown_suite_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--only", "nobodys"])
    assert ended.value.code == 2
    assert "invalid choice: 'nobodys'" in capsys.readouterr().err


THEIRS = """
import pytest

def test_passes(): pass

def test_fails(): assert 1 == 2

def test_skips(): pytest.skip("no brokers")

@pytest.mark.xfail(reason="known")
def test_is_expected_to_fail(): assert False

@pytest.fixture
def broken(): yield; raise OSError("at the end")

def test_fails_afterwards(broken): pass
"""


async def test_every_test_of_a_foreign_suite_is_accounted_for(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(THEIRS)
    async with Children(tmp_path / "logs") as children:
        outcome = await run_pytest(children, "theirs", ["test_theirs.py"], tmp_path)
    assert outcome.passed == [
        "test_theirs.py::test_passes",
        "test_theirs.py::test_is_expected_to_fail",
    ]
    failed = {test.partition("::")[2]: why for test, why in outcome.failed.items()}
    assert sorted(failed) == ["test_fails", "test_fails_afterwards", "test_skips"]
    assert "assert 1 == 2" in failed["test_fails"]
    assert "skips itself, and is not excluded: Skipped: no brokers" in failed["test_skips"]
    assert "at the end" in failed["test_fails_afterwards"]


async def test_an_excluded_test_is_not_run_and_its_reason_is_told(tmp_path: Path) -> None:
    file = tmp_path / "test" / "integration" / "test_consumer_integration.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "def test_kafka_consumer_offsets_for_time_old(): assert False\ndef test_b(): pass"
    )
    async with Children(tmp_path / "logs") as children:
        outcome = await run_pytest(children, "kafka-python", ["test"], tmp_path)
    assert [test.partition("::")[2] for test in outcome.passed] == ["test_b"]
    assert not outcome.failed
    ((test, reason),) = outcome.excluded.items()
    assert test.endswith("test_kafka_consumer_offsets_for_time_old")
    assert "older than Kafka 0.10.1" in reason


async def test_a_file_that_cannot_be_imported_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text("import nobody_has_this")
    async with Children(tmp_path / "logs") as children:
        outcome = await run_pytest(children, "theirs", ["."], tmp_path)
    assert "nobody_has_this" in outcome.failed["test_theirs.py"]


async def test_a_pytest_that_does_not_run_is_an_obstacle(tmp_path: Path) -> None:
    async with Children(tmp_path / "logs") as children:
        with pytest.raises(SuiteNotRun, match=r"(?s)ended without a result:.*--nobodys"):
            await run_pytest(children, "theirs", ["--nobodys"], tmp_path)


def test_several_runs_are_one_suite() -> None:
    both = merged([Outcome(["a"], {"b": "why"}), Outcome(["c"], {}, {"d": "reason"})])
    assert both == Outcome(["a", "c"], {"b": "why"}, {"d": "reason"})


def _files(directory: Path) -> list[Path]:
    return list(directory.iterdir())
