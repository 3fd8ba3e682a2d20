"""`kmr config show`: every setting with its origin, as TOML and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_config_show_is_toml_that_can_be_read_back(kmr: Callable[..., Any], folder: Path) -> None:
    flags: tuple[str, ...] = (
        "--topic",
        "a",
        "--topic",
        "b",
        "--group",
        'é"x',
        "--session-timeout",
        "45s",
    )
    flags = (*flags, "--fetch-max-bytes", "20000001", "--http-port", "0")
    first = kmr("config", "show", *flags, "--security-sasl-password", "hunter2")
    assert first.code == 0
    assert "hunter2" not in first.out
    assert '# sasl_password = "***"' in first.out
    assert "# from flag --session-timeout" in first.out
    (folder / "kmr.toml").write_text(first.out, encoding="utf-8")
    shown = json.loads(kmr("config", "show", "--config", "kmr.toml", "--json").out)
    assert shown["topics"]["value"] == ["a", "b"]
    assert shown["group"] == {"value": 'é"x', "origin": "kmr.toml [kmr] group"}
    assert shown["session_timeout"]["value"] == 45.0
    assert shown["fetch.max_bytes"]["value"] == 20000001
    assert shown["http.port"]["value"] == 0
    assert shown["executor_workers"]["value"] is None
