import cramjam
import pytest

from broker.compression import MAX_UNCOMPRESSED_BYTES, decompress

TEXT = b"the quick brown fox jumps over the lazy dog. " * 1000


def test_every_codec_is_decompressed() -> None:
    for codec, compressed in enumerate(
        (
            cramjam.gzip.compress(TEXT),
            cramjam.snappy.compress_raw(TEXT),
            cramjam.lz4.compress(TEXT),
            cramjam.zstd.compress(TEXT),
        ),
        start=1,
    ):
        assert decompress(codec, memoryview(bytes(compressed))) == TEXT


def test_the_java_librarys_snappy_blocks_are_joined() -> None:
    blocks = [bytes(cramjam.snappy.compress_raw(part)) for part in (TEXT[:20_000], TEXT[20_000:])]
    stream = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    stream += b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
    assert decompress(2, memoryview(stream)) == TEXT


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_garbage_is_refused(codec: int) -> None:
    with pytest.raises(ValueError, match="decompression failed"):
        decompress(codec, memoryview(b"\xff\xfe this is not compressed at all"))


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown compression codec 6"):
        decompress(6, memoryview(b"x"))


def test_a_bomb_is_refused_before_it_fills_the_memory() -> None:
    piece = bytes(16 * 1024 * 1024)
    compressor = cramjam.zstd.Compressor()
    for _ in range(MAX_UNCOMPRESSED_BYTES // len(piece) + 1):
        compressor.compress(piece)
    bomb = bytes(compressor.finish())
    assert len(bomb) < 100_000
    with pytest.raises(ValueError, match="decompression failed"):
        decompress(4, memoryview(bomb))
