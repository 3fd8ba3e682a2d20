import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmr.broker.protocol.cursor import Cursor, MalformedRequest


def test_primitives_are_read_one_after_the_other() -> None:
    cursor = Cursor(memoryview(b"\x00\x05\xff\xff\xff\xfe\xac\x02"))
    assert (cursor.int16(), cursor.int32(), cursor.uvarint()) == (5, -2, 300)
    assert cursor.position == 8


@pytest.mark.parametrize(
    ("data", "compact", "value"),
    [
        (b"\x00\x02hi", False, "hi"),
        (b"\xff\xff", False, None),
        (b"\x03hi", True, "hi"),
        (b"\x01", True, ""),
        (b"\x00", True, None),
    ],
)
def test_strings_are_read_in_both_encodings(data: bytes, compact: bool, value: str | None) -> None:
    assert Cursor(memoryview(data)).string(compact=compact) == value


def test_bytes_are_a_view_of_the_buffer() -> None:
    buffer = bytearray(b"\x00\x00\x00\x03abc")
    data = Cursor(memoryview(buffer)).data(compact=False)
    buffer[4] = ord("x")
    assert data is not None
    assert bytes(data) == b"xbc"
    assert Cursor(memoryview(b"\xff\xff\xff\xff")).data(compact=False) is None


def test_tagged_fields_are_skipped() -> None:
    cursor = Cursor(memoryview(b"\x02\x00\x01A\x05\x02BCrest"))
    cursor.skip_tagged_fields()
    assert cursor.position == 8


@pytest.mark.parametrize(
    "data", [b"\x7f\xff\xff\xff" + bytes(100), b"\x00\x00\x00\x65" + bytes(100)]
)
def test_an_array_that_cannot_fit_is_refused_before_anything_is_allocated(data: bytes) -> None:
    with pytest.raises(MalformedRequest, match="does not fit"):
        Cursor(memoryview(data)).array_length(compact=False)


def test_a_varint_of_six_bytes_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="longer than 5 bytes"):
        Cursor(memoryview(b"\xff\xff\xff\xff\xff\x01")).uvarint()


def test_a_string_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="UTF-8"):
        Cursor(memoryview(b"\x00\x02\xff\xfe")).string(compact=False)


@given(
    st.binary(max_size=60),
    st.lists(st.sampled_from(["int16", "int32", "uvarint", "tags", "s", "d"])),
)
def test_nothing_is_read_beyond_the_end(data: bytes, reads: list[str]) -> None:
    cursor = Cursor(memoryview(data))
    try:
        for read in reads:
            match read:
                case "tags":
                    cursor.skip_tagged_fields()
                case "s":
                    cursor.string(compact=False)
                case "d":
                    cursor.data(compact=True)
                case _:
                    getattr(cursor, read)()
    except MalformedRequest:
        pass
    assert 0 <= cursor.position <= len(data)
