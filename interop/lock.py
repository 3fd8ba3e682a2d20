"""`python -m interop.lock VERSION`: write the lock file for a release of Apache Kafka, with `mvn`.

Maven resolves what `kafka_2.13` needs at run time, and the logging back end of Kafka's own distribution.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from interop.maven import Artifact

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LOCK", "main"]

LOCK: Final = Path(__file__).with_name("kafka.lock")

_LOG4J: Final = "2.25.4"  # what kafka_2.13 4.3 asks for
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>kmr</groupId><artifactId>interop</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{kafka}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId>
      <version>{log4j}</version>
    </dependency>
  </dependencies>
</project>
"""
_RESOLVED: Final = re.compile(
    r"^\s+([\w.-]+):([\w.-]+):jar:([\w.-]+):(?:compile|runtime):(/.+?\.jar)\b", re.MULTILINE
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Resolve, hash, write; 0, or the exit code of `mvn`."""
    parser = argparse.ArgumentParser(prog="python -m interop.lock", description=__doc__)
    parser.add_argument("version", help="a release of Apache Kafka: 4.3.1")
    version = parser.parse_args(arguments).version
    with tempfile.TemporaryDirectory(prefix="kmr-lock-") as name:
        directory = Path(name)
        (directory / "pom.xml").write_text(_POM.format(kafka=version, log4j=_LOG4J))
        listed = directory / "resolved"
        command = ["mvn", "--quiet", "--batch-mode", "dependency:list", "-DincludeScope=runtime"]
        command += ["-DoutputAbsoluteArtifactFilename=true", f"-DoutputFile={listed}"]
        done = subprocess.run(command, cwd=directory, check=False)  # noqa: S603  nothing of others
        if done.returncode:
            return done.returncode
        artifacts = [
            Artifact(group, name, number, sha256(Path(jar).read_bytes()).hexdigest())
            for group, name, number, jar in _RESOLVED.findall(listed.read_text())
        ]
    lines = sorted(map(str, artifacts))
    head = f"# Apache Kafka {version} and what it needs; made by `python -m interop.lock {version}`"
    LOCK.write_text("\n".join([head, *lines, ""]))
    Console(highlight=False).print(f"{LOCK.name}: {len(lines)} jars")
    return 0


if __name__ == "__main__":
    sys.exit(main())
