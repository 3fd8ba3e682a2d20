"""The Java client of Apache Kafka, in the program of `interop/java`: ours, compiled here for its jars.

A JDK is needed (17 or later: `javac` beside `java`), not only a runtime.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from anyio import run_process, to_thread

from demo.processes import ChildFailed, Children, give_up_after
from interop.cached import FetchFailed
from interop.lock import LOCK
from interop.maven import fetch, read_lock
from interop.suites.contract import Outcome, SuiteNotRun
from kmr.spark.jvm import JvmNotFound, cache_directory, find_jvm

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Java", "outcome"]

_SOURCES: Final = Path(__file__).parents[1] / "java"
_CLIENT: Final = "kafka-clients"
_NEEDED: Final = (_CLIENT, "lz4-java", "snappy-java", "zstd-jni", "slf4j-api")
"""Of everything that Apache Kafka itself needs: what its client does."""

# A small JVM that starts fast.
_JVM: Final = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_PATIENCE: Final = 1800.0  # seconds for a whole run
_PASSED: Final = "ok "
_FAILED: Final = "FAILED "
_ALL_PASSED, _SOME_FAILED = 0, 1  # exit codes of the program


class Java:
    """Its producer, consumer and administrator's client, in checks that Apache Kafka passes as well."""

    name = "java"
    about = f"the Java client of Apache Kafka, {_CLIENT} of interop/kafka.lock, in our interop/java"
    broker: Sequence[str] = ("--group-consumer-heartbeat-interval", "0.3")

    async def run(self, bootstrap_servers: str, directory: Path) -> Outcome:
        """Compile, run, and parse the output."""
        locked = [each for each in read_lock(LOCK) if each.name in _NEEDED]
        try:
            java = find_jvm().java
            jars = await to_thread.run_sync(fetch, locked, cache_directory(os.environ) / "maven")
        except (JvmNotFound, FetchFailed) as error:
            raise SuiteNotRun(str(error)) from error
        classes = directory / "classes"
        await _compile(java, jars, classes)
        class_path = os.pathsep.join(map(str, [*jars, classes]))
        command = [str(java), *_JVM, "-cp", class_path, "Smoke", bootstrap_servers]
        faults: dict[str, str] = {}
        async with Children(directory) as children:
            child = await children.spawn("smoke", command)
            try:
                with give_up_after(_PATIENCE, "the Java program does not end"):
                    await child.wait()
            except ChildFailed as error:
                faults["smoke"] = f"{error}\n{child.tail()}"
            code = await child.stop()
        found = outcome(child.log.read_text(errors="replace"))
        if not faults and code != (_SOME_FAILED if found.failed else _ALL_PASSED):
            faults["smoke"] = f"exit code {code}:\n{child.tail()}"
        return Outcome(found.passed, {**found.failed, **faults})


async def _compile(java: Path, jars: Sequence[Path], classes: Path) -> None:
    compiler = java.with_name("javac")
    if not compiler.exists():
        raise SuiteNotRun(
            f"{java} is a runtime, and the Java client's checks have to be compiled: there is no {compiler}. "
            "Install a JDK (Debian, Ubuntu: apt-get install openjdk-17-jdk-headless; "
            "macOS: brew install openjdk@17), and set JAVA_HOME to it"
        )
    sources = sorted(map(str, _SOURCES.glob("*.java")))
    class_path = os.pathsep.join(map(str, jars))
    command = [str(compiler), "-d", str(classes), "-cp", class_path, "-nowarn", *sources]
    done = await run_process(command, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise SuiteNotRun(f"interop/java does not compile:\n{done.stdout.decode(errors='replace')}")


def outcome(printed: str) -> Outcome:
    """How each check went, by the lines that the program printed; other lines are its libraries'."""
    lines = printed.splitlines()
    passed = [line.removeprefix(_PASSED) for line in lines if line.startswith(_PASSED)]
    failed = dict(
        line.removeprefix(_FAILED).split(": ", 1) for line in lines if line.startswith(_FAILED)
    )
    return Outcome(passed, failed)
