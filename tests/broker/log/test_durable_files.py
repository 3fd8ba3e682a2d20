from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker.log.durable_files import TEMPORARY, read_sealed, write_sealed
from kmr.broker.log.results import LogCorrupt


@pytest.mark.parametrize("durable", [True, False])
def test_a_sealed_file_is_read_and_replaced(tmp_path: Path, *, durable: bool) -> None:
    path = tmp_path / "file"
    assert read_sealed(path) is None
    for payload in (b"first", b"", b"second"):
        write_sealed(path, payload, durable=durable)
        assert read_sealed(path) == payload
    assert list(tmp_path.iterdir()) == [path]


def test_a_torn_replacement_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_sealed(path, b"old", durable=True)
    path.with_name(path.name + TEMPORARY).write_bytes(b"ne")
    assert read_sealed(path) == b"old"
    write_sealed(path, b"new", durable=True)
    assert read_sealed(path) == b"new"


@given(st.binary(min_size=1, max_size=50), st.data())
def test_a_flip_or_a_cut_is_found(
    tmp_path_factory: pytest.TempPathFactory, payload: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("sealed") / "file"
    write_sealed(path, payload, durable=False)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[at:]
    path.write_bytes(content)
    with pytest.raises(LogCorrupt, match="checksum"):
        read_sealed(path)
