import pytest

from kmr.broker.protocol.cursor import MalformedRequest
from kmr.broker.protocol.headers import (
    read_request_header,
    response_frame_header,
    skip_header_tags,
)


def test_a_header_with_a_client_id_is_read() -> None:
    frame = memoryview(b"\x00\x12\x00\x03\x00\x00\x00\x07\x00\x02me\x00body")
    header = read_request_header(frame)
    assert (header.api_key, header.api_version, header.correlation_id) == (18, 3, 7)
    assert header.client_id == "me"
    assert bytes(frame[skip_header_tags(frame, header.body) :]) == b"body"


def test_a_null_client_id_is_empty() -> None:
    header = read_request_header(memoryview(b"\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff"))
    assert (header.client_id, header.body) == ("", 10)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00\x12\x00\x00\x00\x00\x00\x07\x00",
        b"\x00\x12\x00\x00\x00\x00\x00\x07\x7f\xffme",
        b"\x00\x12\x00\x00\x00\x00\x00\x07\x00\x02\xff\xff",
    ],
)
def test_a_damaged_header_is_refused(frame: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_request_header(memoryview(frame))


def test_the_length_of_a_response_counts_its_header() -> None:
    assert response_frame_header(7, 10, flexible=False) == b"\x00\x00\x00\x0e\x00\x00\x00\x07"
    assert response_frame_header(7, 10, flexible=True) == b"\x00\x00\x00\x0f\x00\x00\x00\x07\x00"
