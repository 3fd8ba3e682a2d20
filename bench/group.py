"""The dependency group `bench`: the libraries that kmr is measured beside."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

MODULES: Final = {"confluent_kafka": "confluent-kafka", "arroyo": "sentry-arroyo"}
"""What the contenders import, and its name on PyPI."""


def require_group(modules: dict[str, str] = MODULES) -> None:
    """Look for the libraries before anything is started.

    Raises:
        SystemExit: some are not installed; the message names them and the command that installs them.
    """
    lacking = [name for module, name in modules.items() if find_spec(module) is None]
    if lacking:
        raise SystemExit(
            f"bench: not installed: {', '.join(lacking)}; run in the checkout: "
            ".venv/bin/pip install --constraint requirements.lock --group bench"
        )
