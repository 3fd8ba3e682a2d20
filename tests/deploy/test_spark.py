"""deploy/spark: the image has the Spark of the suite."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tools.dockerfile import included, instructions

ROOT: Final = Path(__file__).parents[2]
HERE: Final = ROOT / "deploy" / "spark"


def test_the_image_has_the_spark_that_the_suite_passed_with() -> None:
    dockerfile = instructions((HERE / "Dockerfile").read_text(encoding="utf-8"))
    (version,) = (rest for word, rest in dockerfile if word == "ARG" and rest.startswith("SPARK="))
    locked = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    assert version.replace("SPARK=", "pyspark==") in locked


def test_everything_that_the_image_is_built_from_is_there() -> None:
    names = included(HERE / "Dockerfile.dockerignore")
    assert {"pyproject.toml", "requirements.lock"} <= set(names)
    assert [name for name in names if not (ROOT / name).exists()] == []
