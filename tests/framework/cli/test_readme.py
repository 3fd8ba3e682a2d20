"""The code of the README runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from kmr.record import Record

README = Path(__file__).parents[3] / "README.md"


def strategy_of_the_readme() -> str:
    _, _, rest = README.read_text().partition("```python\n# flights.py\n")
    code, _, _ = rest.partition("```")
    return code


def test_the_strategy_of_the_readme_is_valid(tmp_path: Path) -> None:
    (tmp_path / "flights.py").write_text(strategy_of_the_readme())
    kmr = str(Path(sys.executable).with_name("kmr"))
    command = [kmr, "validate", "flights:strategy", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_the_map_of_the_readme_does_what_it_says() -> None:
    names: dict[str, object] = {}
    exec(strategy_of_the_readme(), names)
    parse = names["parse"]
    assert callable(parse)

    def of(value: object) -> object:
        return parse(Record("flights", 1, 7, None, json.dumps(value).encode(), 0, 0))

    assert of({"carrier": "UA", "dep_delay": 2}) == {
        "carrier": "UA",
        "delay": 2,
        "partition": 1,
        "offset": 7,
    }
    assert of({"carrier": "UA", "dep_delay": None}) is None
