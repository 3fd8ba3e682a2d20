"""Messages about missing libraries: one line, with a command that names libraries that are on PyPI."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest

from kmr import _extras
from kmr._extras import install_command, require_extra
from kmr.errors import MissingExtra

DECLARED = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]


def test_nothing_happens_where_the_libraries_are_installed() -> None:
    for extra in _extras._MODULES:
        require_extra(extra, "This test")


def test_a_missing_library_is_said_in_one_line_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "chdb", None)
    with pytest.raises(MissingExtra) as caught:
        require_extra("embedded", "The embedded ClickHouse")
    assert str(caught.value) == (
        "The embedded ClickHouse needs chdb: pip install 'aiohttp>=3.10' 'chdb>=4.3'"
    )


def test_each_extra_has_its_modules() -> None:
    assert set(_extras._MODULES) | {"all"} == set(DECLARED)
    named_otherwise = {
        "aws-msk-iam-sasl-signer-python": "aws_msk_iam_sasl_signer",
        "grpcio-tools": "grpc_tools",
        "opentelemetry-api": "opentelemetry.trace",
        "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
        "opentelemetry-sdk": "opentelemetry.sdk",
        "psycopg[binary]": "psycopg",
        "protobuf": "google.protobuf",
    }
    assert {name for modules in _extras._MODULES.values() for name in modules} == {
        named_otherwise.get(name := requirement.partition(">")[0], name)
        for extra, requirements in DECLARED.items()
        for requirement in requirements
        if extra != "all"
    }


def test_no_command_names_our_own_distribution() -> None:
    for extra in _extras._MODULES:
        assert "kafka-map-reduce" not in install_command(extra)


def test_an_archive_without_metadata_still_names_the_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_metadata(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("kmr._extras.importlib.metadata.requires", no_metadata)
    assert install_command("spark") == "pip install pandas pyspark"
