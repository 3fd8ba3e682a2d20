"""What the versions of objects keep in memory."""

from __future__ import annotations

from kmr.lookups import versions
from kmr.lookups.object_versions import ObjectVersions


def test_deletes_and_versions_that_no_lookup_finds_leave_the_memory() -> None:
    known = ObjectVersions(keep=1e-5)
    known.table("customers", None)  # type: ignore[arg-type]
    for number in range(50):
        known.put(number % 7, f"n{number}", (number, number, 0))
    for key in range(7):
        known.drop(key, (50 + key, 50 + key, 0))
    before = known.nbytes(0)
    known.put(9, "last", (100, 99, 0))
    known.tidy(is_pressed=True)
    assert (len(known), known.nbytes(0) < before / 20) == (1, True)
    assert known.horizon.since == 90
    assert (known.find(0, 90), known.find(9, 99), known.find(9, 100)) == (None, None, "last")
    assert versions.ALWAYS < 0


def test_a_delete_hides_older_versions_that_come_after_it_from_another_partition() -> None:
    """While the table is loaded, and later where the delete is newer than the horizon."""
    known = ObjectVersions(keep=1e-5)
    known.drop("a", (50, 0, 0))
    known.put("b", "new", (100, 1, 0))
    known.tidy(is_pressed=True)
    known.put("a", "old", (40, 0, 1))
    assert known.find("a", 100) is None
    known.table("customers", None)  # type: ignore[arg-type]
    known.drop("c", (95, 2, 0))
    known.tidy(is_pressed=True)
    known.put("c", "old", (92, 1, 1))
    assert (known.find("c", 92), known.find("c", 100)) == ("old", None)
