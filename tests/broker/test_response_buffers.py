from kmr.broker.response_buffers import ResponseBuffers

KIB = 1024


async def test_small_buffers_do_not_wait_for_large_ones_nor_large_ones_for_small_ones() -> None:
    buffers = ResponseBuffers(1024 * KIB)
    large = [buffers.take(256 * KIB) for _ in range(4)]
    assert [each is None for each in large] == [False, False, False, True]
    awaited = buffers.when_available(256 * KIB)
    assert buffers.is_awaited
    small = [buffers.take(100 * KIB) for _ in range(3)]
    assert [each is None for each in small] == [False, False, True]
    assert small[0] is not None
    buffers.put(small[0])
    assert not awaited.done()
    assert len(await buffers.wait(100 * KIB)) == 128 * KIB
    assert large[0] is not None
    buffers.put(large[0])
    assert len(await awaited) == 256 * KIB
    assert not buffers.is_awaited
    assert (buffers.large.used, buffers.small.used) == (768 * KIB, 256 * KIB)


async def test_a_buffer_of_any_size_is_lent_beyond_the_limit() -> None:
    buffers = ResponseBuffers(64 * KIB)
    lent = [buffers.take_beyond_limit(size * KIB) for size in (64, 64, 256)]
    assert (buffers.small.used, buffers.large.used) == (128 * KIB, 256 * KIB)
    for each in lent:
        buffers.put(each)
    assert (buffers.small.used, buffers.large.used) == (0, 0)
