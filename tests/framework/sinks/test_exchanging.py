"""What the exchange of two tables needs, whichever database has them."""

from __future__ import annotations

import pytest

from kmr.errors import StrategyError
from kmr.sinks.exchanging import VersionGroups, require_plain, same_table


def test_both_versions_need_groups_of_their_own() -> None:
    VersionGroups(("web2", "web2.backfill"), ("web", "web.backfill"))
    with pytest.raises(StrategyError, match="each needs its own"):
        VersionGroups(("web",), ("web",))


@pytest.mark.parametrize("name", ["we`b", "we'b", "", "w\neb", "{web}"])
def test_names_that_would_need_escapes_are_refused(name: str) -> None:
    with pytest.raises(
        StrategyError, match=r"it must have letters, digits and \. _ - : @ / \+ only"
    ):
        require_plain(name, "a group")


def test_a_version_without_a_table_of_its_own_is_told_what_to_do() -> None:
    assert same_table("hits").startswith("the new version writes to hits itself. Give it a table")
