"""Decompression: every codec, growing buffers, limits and damaged bytes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import cramjam
import pytest

from kmr.formats.batch_decoder import CodecError, Decompressed

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN = b"plain " * 5_000
CODECS: dict[int, Callable[[bytes], cramjam.Buffer]] = {
    1: cramjam.gzip.compress,
    2: cramjam.snappy.compress_raw,
    3: cramjam.lz4.compress,
    4: cramjam.zstd.compress,
}


@pytest.mark.parametrize("codec", CODECS)
def test_batches_follow_each_other_in_a_buffer_that_grows(codec: int) -> None:
    compressed = memoryview(bytes(CODECS[codec](PLAIN)))
    plain = Decompressed(10, 1 << 20)
    assert plain.append(0, memoryview(b"before")) == (0, 6)
    assert plain.append(codec, compressed) == (6, 6 + len(PLAIN))
    assert plain.data.tobytes() == b"before" + PLAIN


@pytest.mark.parametrize("codec", CODECS)
def test_more_than_the_limit_is_refused(codec: int) -> None:
    compressed = memoryview(bytes(CODECS[codec](PLAIN)))
    with pytest.raises(CodecError):
        Decompressed(10, len(PLAIN) - 1).append(codec, compressed)


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_bytes_are_refused(codec: int) -> None:
    with pytest.raises(CodecError):
        Decompressed(10, 1 << 16).append(codec, memoryview(b"\xff" * 40))


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(CodecError, match="compression codec 5 is unknown"):
        Decompressed(10, 100).append(5, memoryview(b""))


@pytest.mark.parametrize("tail", [b"\x00\x00", struct.pack(">i", 99) + b"short"])
def test_a_snappy_frame_that_is_cut_off_is_refused(tail: bytes) -> None:
    frame = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + tail
    with pytest.raises(CodecError, match="cut off"):
        Decompressed(10, 100).append(2, memoryview(frame))
