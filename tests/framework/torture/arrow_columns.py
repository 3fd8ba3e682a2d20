"""Arrow columns of random types, nested ones too, with values at the edges of each type, for hypothesis."""

from __future__ import annotations

import uuid
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa
from hypothesis import strategies as st

from .arrow_values import UNITS, YEARS, YEARS_FAR, days_to

_pa: Any = pa
_DAY: Final = 86_400
_EXACT: Final = Context(prec=100, Emax=999, Emin=-999)
_TEXTS: Final = (
    *("", " ", "\0", "a\0b", "é", "😀", "abc", "abcd", "a" * 70_000, "\ufeff", "\u2028", "\\N", "\\.", "NULL"),
    *("0", "-0", "+1", "1", "127", "128", "-129", "255", "256", "32768", "1e3", "1.5", ".5", "5.", "1_000"),
    *("١٢", "0x10", "1e400", "1e-400", "NaN", "inf", "-Infinity", "99999999999999999999", "999.99", "999.995"),
    *("true", "f", "yes", "off", "TRUE", "2026-01-31", "2026-02-30", "2026-01-31T12:00:00Z", "24:00", "24:00:00"),
    *("2026-01-31 23:59:60", "2026-01-31T12:00:00.123456789+05:30", "12:30", "12:30:00.5", "infinity", "now"),
    *("epoch", "0001-01-01", "9999-12-31T23:59:59.999999Z", "2026-01-31T12", "12:30:00+02", "1 day", "P1D", "PT1S"),
    *("61f0c404-5cb3-11e7-907b-a6006ad3dba0", "61F0C4045CB311E7907BA6006AD3DBA0", "127.0.0.1", "::1", "::ffff:1.2.3.4"),
    *("10.0.0.0/8", "10.0.0.1/8", "fe80::1%eth0", "256.1.1.1", "01.2.3.4", "08:00:2b:01:02:03", "101", "10", "102"),
    *("a", "b", "A", "{}", "[]", "{1,2}", "[1,2]", '{"a": 1}', '{"a": 1, "a": 2}', "null", "[1.0]", "(1,2)", "[1,5)"),
    *('{"a": "\\u0000"}', '"\\ud800"', "<a/>", "<a>", "a=>1", "x,y", '"', "'", "\n", "\r\n", "\t", "{", "abc   ", "  a"),
    *("\\x41", "\\x4", "\\101", "base64:YQ==", "1,5", "$1.50", "-", "e\u0301", "ß", "İ"),
)  # fmt: skip
_BYTES: Final = (
    *(b"", b"\0", b"a", b"abc", b"12", b"1.5", b"\xff", b"\xed\xa0\xbd", b"a\xc3", b"\\x41", b"base64:YQ=="),
    *(bytes(range(256)), bytes(16), bytes(range(16)), b"\xff" * 16, b"2026-01-31", b"true", b"{}", b"\x00" * 4),
)  # fmt: skip


def _integers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    edges = {
        n + d
        for e in (0, 7, 8, 15, 16, 24, 31, 32, 53, 63, 64)
        for n in (2**e, -(2**e))
        for d in (-1, 0, 1)
    }
    edges |= {
        low,
        high,
        65_535,
        65_536,
        120_529,
        120_530,
        -25_567,
        -25_568,
        3_599_999,
        3_600_000,
        86_400,
    }
    return st.sampled_from(sorted(n for n in edges if low <= n <= high)) | st.integers(low, high)


def _floats(bits: int) -> st.SearchStrategy[float]:
    wide: Any = bits
    return st.floats(width=wide) | st.sampled_from([0.0, -0.0, 0.5, 1.0, 127.0, 255.0, 256.0])


def _moments(per_second: float, most: int) -> st.SearchStrategy[int]:
    """Ticks since 1970."""
    starts = [days_to(year) * _DAY for year in (*YEARS, *YEARS_FAR)]
    starts += [0, 2**31, 2**32, -(2**31), -210_866_803_200, -62_135_596_800, 9_224_318_016_000]
    ticks = [int(s * per_second) + d for s in starts for d in (-1, 0, 1, int(per_second) - 1)]
    limits = [-most - 1, -most, most - 1, most]
    return st.sampled_from([t for t in (*ticks, *limits) if -most - 1 <= t <= most]) | st.integers(
        -most - 1, most
    )


def _leaf(kind: Any, values: st.SearchStrategy[Any]) -> tuple[Any, st.SearchStrategy[Any]]:
    return kind, st.none() | values


def _leaves() -> list[tuple[Any, st.SearchStrategy[Any]]]:
    texts = st.sampled_from(_TEXTS) | st.text(max_size=5)
    blobs = st.sampled_from(_BYTES) | st.binary(max_size=5)
    found = [_leaf(pa.null(), st.none()), _leaf(pa.bool_(), st.booleans())]
    for bits in (8, 16, 32, 64):
        found.append(_leaf(getattr(pa, f"int{bits}")(), _integers(bits, signed=True)))
        found.append(_leaf(getattr(pa, f"uint{bits}")(), _integers(bits, signed=False)))
    found += [_leaf(getattr(pa, f"float{bits}")(), _floats(bits)) for bits in (16, 32, 64)]
    found += [_leaf(kind, texts) for kind in (pa.string(), pa.large_string(), pa.string_view())] * 3
    found += [_leaf(kind, blobs) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())]
    found += [
        _leaf(pa.binary(size), st.binary(min_size=size, max_size=size)) for size in (0, 3, 4, 16)
    ]
    found += [
        _leaf(pa.date32(), _moments(1 / _DAY, 2**31 - 1)),
        _leaf(pa.date64(), _moments(1 / _DAY, 2**31 - 1).map(lambda days: days * _DAY * 1000)),
        _leaf(_pa.bool8(), st.sampled_from([0, 1, 2, -1])),
        _leaf(_pa.json_(), st.sampled_from(['{"a": 1}', "[]", "null", "{", "1"])),
        _leaf(_pa.opaque(pa.binary(), "box", "maker"), blobs),
    ]
    for unit, per_second in UNITS.items():
        of_a_day = st.sampled_from(
            [
                0,
                1,
                _DAY * per_second - 1,
                3_661 * per_second + per_second // 3,
            ]
        )
        made: Any = pa.time32 if per_second < 10**6 else pa.time64
        found.append(_leaf(made(unit), of_a_day))
        for zone in (None, "UTC", "America/New_York", "+05:30"):
            found.append(_leaf(pa.timestamp(unit, zone), _moments(per_second, 2**63 - 1)))
        found.append(_leaf(pa.duration(unit), _moments(per_second, 2**63 - 1)))
    number = st.sampled_from([0, 1, -3, 2**31])
    found.append(
        _leaf(
            pa.month_day_nano_interval(),
            st.tuples(number.filter(lambda n: n < 2**31), st.just(2), number),
        )
    )
    for precision, scale, make in (
        (5, 2, pa.decimal128),
        (38, 0, pa.decimal128),
        (38, 38, pa.decimal128),
        (5, -3, pa.decimal128),
        (76, 0, pa.decimal256),
        (76, 38, pa.decimal256),
        (9, 4, _pa.decimal32),
        (18, 4, _pa.decimal64),
    ):
        most = 10**precision - 1
        digits = st.sampled_from([0, 1, -1, most, -most, most // 3, 10**2, -(10**3)]) | st.integers(
            -most, most
        )
        found.append(
            _leaf(
                make(precision, scale),
                digits.filter(lambda n, most=most: abs(n) <= most).map(
                    lambda n, scale=scale: _EXACT.scaleb(Decimal(n), -scale)
                ),
            )
        )
    found.append(
        _leaf(pa.uuid(), st.uuids().map(lambda each: each.bytes) | st.just(uuid.UUID(int=0).bytes))
    )
    return found


_LEAVES: Final = _leaves()
_NAMES: Final = ("a", "b", "A", "", "a b", "ä", "a.b", 'q"', "\n", "x" * 70)

Kind = tuple[Any, st.SearchStrategy[Any]]


def _lists(inner: Kind) -> st.SearchStrategy[Kind]:
    kind, values = inner
    items = st.none() | st.lists(values, max_size=3)
    makers = st.sampled_from(
        [pa.list_, pa.large_list, pa.list_view, _pa.large_list_view, lambda each: pa.list_(each, 2)]
    )

    def made(make: Any) -> Kind:
        lists = make(kind)
        if pa.types.is_fixed_size_list(lists):
            return lists, st.none() | st.lists(values, min_size=2, max_size=2)
        return lists, items

    return makers.map(made)


def _structs(fields: dict[str, Kind]) -> Kind:
    values = st.none() | st.fixed_dictionaries({name: each[1] for name, each in fields.items()})
    return pa.struct([pa.field(name, each[0]) for name, each in fields.items()]), values


def _maps(key: Kind, item: Kind) -> Kind:
    kind: Any = pa.map_(key[0], item[0])
    pairs = st.tuples(key[1].filter(lambda each: each is not None), item[1])
    return kind, st.none() | st.lists(pairs, max_size=3)


def _built(values: list[Any], kind: Any) -> pa.Array[Any]:
    """Build an array; Arrow makes no nested extension types of Python's values."""
    storage = _stored(kind)
    array = pa.array(values, storage)
    if storage == kind:
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(array)
    try:
        return array.cast(kind)
    except pa.ArrowNotImplementedError:  # inside of views
        return array


def _stored(kind: Any) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_stored(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return _pa.map_(_stored(kind.key_type), _stored(kind.item_type))
    for is_kind, make in (
        (pa.types.is_list, pa.list_),
        (pa.types.is_large_list, pa.large_list),
        (pa.types.is_list_view, pa.list_view),
        (pa.types.is_large_list_view, _pa.large_list_view),
    ):
        if is_kind(kind):
            return make(_stored(kind.value_type))
    return pa.list_(_stored(kind.value_type), 2) if pa.types.is_fixed_size_list(kind) else kind


_leaf_kinds: Final = st.sampled_from(_LEAVES)
_kinds: Final = st.recursive(
    _leaf_kinds,
    lambda inner: (
        inner.flatmap(_lists)
        | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=3).map(_structs)
        | st.builds(
            _maps,
            (_leaf_kinds | _leaf_kinds | _leaf_kinds.flatmap(_lists)).filter(
                lambda each: not pa.types.is_null(each[0])
            ),
            inner,
        )
    ),
    max_leaves=4,
)


def _dictionary(draw: st.DrawFn, array: Any) -> Any:
    rows = st.none() | st.integers(0, len(array) - 1)
    drawn = draw(st.lists(rows, min_size=len(array) - 2, max_size=len(array) - 2))
    return pa.DictionaryArray.from_arrays(pa.array([None, *drawn, None], pa.int16()), array)


def _is_utf8(array: Any) -> bool:
    """Whether text, at any depth, is UTF-8."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _runs(draw: st.DrawFn, array: Any) -> Any:
    more = draw(st.integers(0, 2))
    ends = pa.array([more + at for at in range(1, len(array) + 1)], pa.int32())
    runs: Any = pa.RunEndEncodedArray.from_arrays(ends, array)
    return runs.slice(more)


def _beside(_: st.DrawFn, array: Any) -> Any:
    """Objects of the values, of their numbers, and of nothing."""
    rows = pa.array(range(len(array)), pa.int8())
    null = array.is_null() if not pa.types.is_null(array.type) else rows.is_valid()
    fields = [array, rows, pa.nulls(len(array))]
    return pa.StructArray.from_arrays(fields, ["a", "b", "c"], mask=null)


def _in_list(_: st.DrawFn, array: Any) -> Any:
    """Lists: null, all values, none, null."""
    offsets = pa.array([0, 0, len(array), len(array), len(array)], pa.int32())
    mask = pa.array([True, False, False, True])
    return pa.ListArray.from_arrays(offsets, array, mask=mask)


_FORMS: Final = [_dictionary, _runs, _beside, _in_list]


@st.composite
def columns(draw: st.DrawFn, *, nested: bool = True) -> pa.Array[Any]:
    """Draw a column of up to a dozen values of some type. Its first and last value are null."""
    kind, values = draw(_kinds if nested else _leaf_kinds)
    drawn = draw(st.lists(values, min_size=1, max_size=4))
    if pa.types.is_string(kind) and draw(st.integers(0, 4)) == 0:
        raw = pa.array(
            [None, *draw(st.lists(st.sampled_from(_BYTES), min_size=1, max_size=4)), None]
        )
        array: Any = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    else:
        array = _built([*drawn[:1], None, *drawn, None], kind).slice(1)
    for form in draw(st.lists(st.sampled_from(_FORMS[: 4 if nested else 2]), max_size=2)):
        if form is not _runs or _is_utf8(array):  # Arrow makes no runs of other text
            array = form(draw, array)
    return array
