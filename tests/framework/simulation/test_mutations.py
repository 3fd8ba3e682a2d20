"""The simulation finds mutations of the protocol: a few here, all of them with `make simulate`."""

from __future__ import annotations

import pytest

from .mutations import MUTATIONS, ROOT
from .nightly import try_mutation


@pytest.mark.parametrize(
    "name",
    [
        "failed records settle with the others",
        "a range is written before earlier failed records are settled",
        "a token without a range",
        "a token does not contain the generation",
        "a token without the times",
        "windows settle before the letters of their rows",
        "the watermark jumps to the highest settled offset",
    ],
)
def test_a_mutation_of_the_protocol_is_found(name: str) -> None:
    found, rest = try_mutation(name, 300)
    assert found, rest


def test_a_member_that_slept_through_a_reset_and_does_not_ask_is_found() -> None:
    found, rest = try_mutation("a range is written once more without asking the group", 4, 488)
    assert found, rest


def test_every_mutation_fits_one_place_of_the_present_code() -> None:
    assert len(MUTATIONS) >= 50
    for name, mutation in MUTATIONS.items():
        assert (ROOT / mutation.file).read_text().count(mutation.old) == 1, name
