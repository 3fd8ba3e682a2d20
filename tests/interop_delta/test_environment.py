"""The environment with another PySpark has the other packages of this one, and makes no use of its Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interop.environment import link_packages

if TYPE_CHECKING:
    from pathlib import Path


def test_packages_are_linked_but_for_those_of_spark_and_those_that_are_there(
    tmp_path: Path,
) -> None:
    running, own = tmp_path / "running", tmp_path / "own"
    for directory, content in ((running, "running"), (own, "own")):
        for package in ("pyspark", "pip"):
            (directory / package).mkdir(parents=True)
            (directory / package / "__init__.py").write_text(content)
    for package in ("msgspec", "pyspark-4.3.0.dist-info", "py4j"):
        (running / package).mkdir()
        (running / package / "__init__.py").write_text("running")
    (running / "editable.pth").write_text("/checkout")
    link_packages(running, own)
    assert sorted(each.name for each in own.iterdir()) == [
        "editable.pth",
        "msgspec",
        "pip",
        "pyspark",
    ]
    assert (own / "msgspec/__init__.py").samefile(running / "msgspec/__init__.py")
    assert (own / "pyspark/__init__.py").read_text() == "own"
