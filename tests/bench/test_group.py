"""A bench without the libraries that it measures says which, and how they are installed."""

from __future__ import annotations

import pytest

from bench.group import require_group


def test_a_library_that_lacks_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(SystemExit) as ended:
        require_group({"json": "json", "no_such_module": "no-such-library"})
    assert "not installed: no-such-library; run" in str(ended.value)
    assert str(ended.value).endswith("--group bench")


def test_a_bench_with_its_libraries_goes_on() -> None:
    require_group({"json": "json"})
