from pathlib import Path

import pytest

from broker.log.errors import LogCorrupt
from broker.producer_ids import ProducerIds


def test_ids_are_unique_over_restarts_and_kills(tmp_path: Path) -> None:
    path = tmp_path / "producer-ids"
    seen: list[int] = []
    for count in (1, 2500, 0, 999, 1):
        ids = ProducerIds(path)  # nothing closes it: every restart is like one after a kill
        seen += [ids.next() for _ in range(count)]
    assert len(set(seen)) == len(seen) == 3501
    assert min(seen) == 0


def test_a_damaged_file_is_refused_instead_of_handing_out_ids_twice(tmp_path: Path) -> None:
    path = tmp_path / "producer-ids"
    ProducerIds(path).next()
    path.write_bytes(path.read_bytes().replace(b"1", b"0", 1))
    with pytest.raises(LogCorrupt, match="producer-ids is corrupt"):
        ProducerIds(path)


def test_an_id_that_cannot_be_reserved_is_not_handed_out(tmp_path: Path) -> None:
    ids = ProducerIds(tmp_path / "missing" / "producer-ids")
    with pytest.raises(FileNotFoundError):
        ids.next()


def test_without_the_file_no_id_that_a_log_knows_is_handed_out(tmp_path: Path) -> None:
    path = tmp_path / "producer-ids"
    made_up = 2**63 - 1
    assert ProducerIds(path, used=[7, 1500, made_up]).next() == 1501
    assert ProducerIds(path, used=[9000]).next() == 2501  # the file knows better
