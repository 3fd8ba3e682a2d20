"""Arrow columns of every type, with values at the edges of what a sink can store."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

DAY: Final = 86_400


@dataclass(frozen=True)
class Case:
    """A column by the name of its kind."""

    name: str
    array: pa.Array[Any]

    def __str__(self) -> str:
        return self.name


def days_to(year: int) -> int:
    """Days from 1970-01-01 to the first of January of a year of the proleptic Gregorian calendar."""
    y = year - 1
    return y * 365 + y // 4 - y // 100 + y // 400 - 719_162


YEARS: Final = (
    -290_000,
    -4713,
    -1,
    0,
    1,
    1677,
    1899,
    1900,
    1969,
    1970,
    2038,
    2106,
    2149,
    2262,
    2299,
    2300,
)
YEARS_FAR: Final = (9999, 10_000, 32_767, 32_768, 57_837, 65_536, 294_247)
UNITS: Final = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}


def texts() -> list[Any]:
    return [
        "",
        "plain",
        "\x00",
        "a\x00b",
        "é",
        "😀",
        "\ufeffbom",
        "\uffff",
        "\x1b[31mred",
        "tab\tnl\ncr\r\\n\\N\\.",
        "'\"`;--",
        "NULL",
        "null",
        "{}",
        "NaN",
        " pad ",
        "\u2028\u2029",
        "\x7f\x80",
        "a" * 70_000,
        "😀" * 300_000,
        None,
    ]


def blobs() -> list[Any]:
    return [
        b"",
        b"\x00",
        b"text",
        bytes(range(256)),
        b"\xed\xa0\xbd",
        b"\xff\xfe",
        b"base64:abc",
        b"\\x00",
        b"a" * 1_100_000,
        None,
    ]


def ill_formed(kind: Any = None) -> pa.Array[Any]:
    """A text column that holds lone surrogates and other bytes that are not UTF-8, as unchecked sources make it."""
    data = pa.array([b"ok", b"\xed\xa0\xbd", b"\xff", b"a\xc3", None, b"fine"], pa.binary())
    return pa.Array.from_buffers(pa.string(), len(data), data.buffers())


def integers(bits: int, signed: bool) -> list[Any]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    inner = {
        0,
        1,
        -1,
        127,
        128,
        255,
        256,
        32767,
        32768,
        65535,
        65536,
        2**31 - 1,
        2**31,
        2**32,
        2**53,
        2**53 + 1,
        2**63 - 1,
        -129,
        -32769,
        -(2**31) - 1,
    }
    return [low, low + 1, *sorted(n for n in inner if low <= n <= high), high - 1, high, None]


def floats(bits: int) -> list[Any]:
    largest = {16: 65504.0, 32: 3.4028234663852886e38, 64: 1.7976931348623157e308}[bits]
    tiny = {16: 2.0**-24, 32: 2.0**-149, 64: 5e-324}[bits]
    values = [0.0, -0.0, 1.5, -1.5, largest, -largest, tiny, math.nan, math.inf, -math.inf, None]
    if bits == 64:
        values += [0.1, 1e300, -1e39, 3.5e38, 2.0**53 + 2, 1e22, 1e-7, 123456789.123456789]
    if bits == 32:
        values += [struct.unpack("f", struct.pack("f", 0.1))[0], 16777216.0]
    return values


def timestamps(unit: str) -> list[Any]:
    scale = UNITS[unit]
    found = [days_to(y) * DAY * scale for y in (*YEARS, *YEARS_FAR)]
    found += [
        0,
        -1,
        1,
        scale - 1,
        -scale - 1,
        2**63 - 1,
        -(2**63),
        -(2**63) + 1,
        (days_to(2000) * DAY + 45) * scale + scale // 3,
    ]
    found += [
        (days_to(10_000) * DAY) * scale - 1,
        (days_to(1) * DAY) * scale - 1,
        -62135596800 * scale - 3600 * scale,
    ]
    return [*(n for n in found if -(2**63) <= n < 2**63), None]


def _cast(values: list[Any], storage: Any, kind: Any) -> pa.Array[Any]:
    return pa.array(values, storage).view(kind)


def plain_cases() -> list[Case]:
    found = [Case("null", pa.nulls(3)), Case("bool", pa.array([True, False, None]))]
    for bits in (8, 16, 32, 64):
        found.append(
            Case(f"int{bits}", pa.array(integers(bits, True), getattr(pa, f"int{bits}")()))
        )
        found.append(
            Case(f"uint{bits}", pa.array(integers(bits, False), getattr(pa, f"uint{bits}")()))
        )
    for bits in (16, 32, 64):
        kind = getattr(pa, f"float{bits}")()
        found.append(
            Case(f"float{bits}", pa.array(floats(bits), pa.float64()).cast(kind, safe=False))
        )
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        found.append(Case(str(kind), pa.array(texts(), kind)))
    found.append(Case("string ill-formed", ill_formed()))
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        found.append(Case(str(kind), pa.array(blobs(), kind)))
    found.append(
        Case("fixed[3]", pa.array([b"abc", b"\x00\x00\x00", b"\xff\xed\xa0", None], pa.binary(3)))
    )
    found.append(Case("fixed[0]", pa.array([b"", b"", None], pa.binary(0))))
    days = [days_to(y) for y in (*YEARS, *YEARS_FAR)] + [0, -1, 1, 2**31 - 1, -(2**31), None]
    found.append(Case("date32", _cast(days, pa.int32(), pa.date32())))
    ms = [d * DAY * 1000 for d in days if d is not None] + [None]
    found.append(Case("date64", _cast(ms, pa.int64(), pa.date64())))
    for unit, storage in (
        ("s", pa.int32()),
        ("ms", pa.int32()),
        ("us", pa.int64()),
        ("ns", pa.int64()),
    ):
        scale = UNITS[unit]
        made = pa.time32(unit) if storage == pa.int32() else pa.time64(unit)
        values = [0, 1, DAY * scale - 1, 3661 * scale, None]
        found.append(Case(f"time[{unit}]", _cast(values, storage, made)))
        wild = [0, DAY * scale, -1, DAY * scale + 1, 5]
        found.append(Case(f"time[{unit}] out of range", _cast(wild, storage, made)))
    for unit in UNITS:
        for zone in (None, "UTC", "+05:30", "America/New_York"):
            if zone in ("+05:30", "America/New_York") and unit in ("s", "ms"):
                continue
            kind = pa.timestamp(unit, zone)
            found.append(Case(str(kind), _cast(timestamps(unit), pa.int64(), kind)))
        spans = [
            0,
            1,
            -1,
            1_500 * UNITS[unit] // 1000,
            -DAY * UNITS[unit],
            2**63 - 1,
            -(2**63) + 1,
            2**53 + 1,
            None,
        ]
        found.append(Case(f"duration[{unit}]", _cast(spans, pa.int64(), pa.duration(unit))))
    found.append(
        Case("interval", pa.array([(1, 2, 3), (-1, 0, 0), None], pa.month_day_nano_interval()))
    )
    for precision, scale, make in (
        (9, 2, pa.decimal128),
        (38, 0, pa.decimal128),
        (38, 18, pa.decimal128),
        (38, 38, pa.decimal128),
        (5, -3, pa.decimal128),
        (76, 0, pa.decimal256),
        (76, 38, pa.decimal256),
        (9, 9, pa.decimal32),
        (18, 4, pa.decimal64),
    ):
        most = 10**precision - 1
        storage = [0, 1, -1, most, -most, most // 3, None]
        found.append(
            Case(
                f"{make.__name__}({precision},{scale})", _decimals(storage, precision, scale, make)
            )
        )
    return found


def _decimals(unscaled: list[Any], precision: int, scale: int, make: Any) -> pa.Array[Any]:
    from decimal import Context, Decimal

    context = Context(prec=100, Emax=999, Emin=-999)
    values = [None if n is None else context.scaleb(Decimal(n), -scale) for n in unscaled]
    return pa.array(values, make(precision, scale))


def nested_cases() -> list[Case]:
    text, big = pa.string(), pa.int64()
    found: list[Case] = []

    def add(name: str, kind: Any, values: list[Any]) -> None:
        found.append(Case(name, pa.array(values, kind)))

    add("list<int64>", pa.list_(big), [[1, 2], [], [None], None, [2**63 - 1]])
    add("large_list<string>", pa.large_list(text), [["a"], [], [None, "\x00"], None, ["😀"]])
    add("list_view<int64>", pa.list_view(big), [[1, 2], [], [None], None])
    add("large_list_view<int64>", pa.large_list_view(big), [[1, 2], [], [None], None])
    add("fixed_size_list<int64>[2]", pa.list_(big, 2), [[1, 2], [None, 3], None])
    add("fixed_size_list<int64>[0]", pa.list_(big, 0), [[], None, []])
    add("list<float64>", pa.list_(pa.float64()), [[0.5], [math.nan], [math.inf], [-0.0], None])
    add("list<binary>", pa.list_(pa.binary()), [[b"a"], [b"\xff"], [b""], None])
    add("list<list<int64>>", pa.list_(pa.list_(big)), [[[1], []], [], [None], None, [[None]]])
    add("list<null>", pa.list_(pa.null()), [[], [None], None])
    add(
        "list<timestamp>", pa.list_(pa.timestamp("us", "UTC")), [[0], [-(2**62)], [2**63 - 1], None]
    )
    add(
        "list<decimal>",
        pa.list_(pa.decimal128(38, 10)),
        [[1], ["0.0000000001"], None] and [[1], None],
    )
    add("list<bool>", pa.list_(pa.bool_()), [[True, None], None])
    add("list<date32>", pa.list_(pa.date32()), [[0], [2**31 - 1], [-(2**31)], None])
    add(
        "list<struct>",
        pa.list_(pa.struct({"a": big, "b": text})),
        [[{"a": 1, "b": "x"}], [{"a": None, "b": None}], [None], [], None],
    )
    add(
        "struct",
        pa.struct({"a": big, "b": text}),
        [{"a": 1, "b": "x"}, {"a": None, "b": "\x00"}, None, {"a": -1, "b": ""}],
    )
    add("struct<>", pa.struct([]), [{}, None, {}])
    needed = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    add("struct not null", needed, [{"a": 1}, None])
    add("list<struct not null>", pa.list_(needed), [[{"a": 1}], [], None])
    add(
        "struct odd names",
        pa.struct({"": big, "a b": big, "q\"'`": big, "ünï": big, "a.b": big, "\n": big}),
        [{"": 1, "a b": 2, "q\"'`": 3, "ünï": 4, "a.b": 5, "\n": 6}, None],
    )
    add(
        "struct float",
        pa.struct({"x": pa.float64(), "y": pa.float32()}),
        [{"x": math.nan, "y": 1.5}, {"x": 0.1, "y": math.inf}, {"x": -0.0, "y": -0.0}],
    )
    add(
        "struct times",
        pa.struct({"t": pa.timestamp("us", "UTC"), "d": pa.date32(), "s": pa.duration("us")}),
        [
            {"t": 0, "d": 0, "s": 0},
            {"t": -(2**62), "d": 1, "s": 1},
            {"t": 2**62, "d": 2**31 - 1, "s": -1},
            {"t": 1, "d": -(2**31), "s": 2**62},
        ],
    )
    add(
        "map<string,int64>",
        pa.map_(text, big),
        [[("a", 1)], [], [("a", None)], None, [("", 2)], [("\x00", 3)]],
    )
    add("map duplicate keys", pa.map_(text, big), [[("a", 1), ("a", 2)], [("b", 3)]])
    add("map<int64,string>", pa.map_(big, text), [[(1, "x")], [(2**63 - 1, None)], None, []])
    add(
        "map<timestamp,float>",
        pa.map_(pa.timestamp("us", "UTC"), pa.float64()),
        [[(0, 1.5)], [(-(2**62), 2.5)], None],
    )
    add(
        "map<binary,binary>",
        pa.map_(pa.binary(), pa.binary()),
        [[(b"a", b"\xff")], [(b"\xff", b"")], None],
    )
    add(
        "map<float,int>",
        pa.map_(pa.float64(), big),
        [[(0.5, 1)], [(math.nan, 2)], [(-0.0, 3)], None],
    )
    add("map<struct,int>", pa.map_(pa.struct({"a": big}), big), [[({"a": 1}, 1)], None])
    add("map<bool,int>", pa.map_(pa.bool_(), big), [[(True, 1), (False, 2)], None])
    add(
        "map<string,list<struct>>",
        pa.map_(text, pa.list_(pa.struct({"a": big}))),
        [[("k", [{"a": 1}, None])], None, []],
    )
    deep: Any = big
    value: Any = 7
    for _ in range(40):
        deep, value = pa.list_(deep), [value]
    add("deep list", deep, [value, None, []])
    deep, value = text, "x"
    for _ in range(30):
        deep, value = pa.struct({"a": deep}), {"a": value}
    add("deep struct", deep, [value, None])
    for index in (pa.int8(), pa.int64(), pa.uint32()):
        found.append(
            Case(
                f"dictionary<{index},string>",
                pa.DictionaryArray.from_arrays(
                    pa.array([0, 1, None, 1, 0], index), pa.array(["a", "b"])
                ),
            )
        )
    found.append(
        Case(
            "dictionary with null value",
            pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["a", None])),
        )
    )
    found.append(
        Case(
            "dictionary<int64>",
            pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array([2**63 - 1, -5])),
        )
    )
    found.append(
        Case(
            "dictionary<float64>",
            pa.DictionaryArray.from_arrays(
                pa.array([0, 1, None, 2]), pa.array([math.nan, -0.0, 1.5])
            ),
        )
    )
    found.append(
        Case(
            "dictionary<timestamp>",
            pa.DictionaryArray.from_arrays(
                pa.array([0, 1, None]), _cast([0, 2**62], pa.int64(), pa.timestamp("us", "UTC"))
            ),
        )
    )
    found.append(
        Case(
            "dictionary unused ill-formed",
            pa.DictionaryArray.from_arrays(pa.array([0, 0, 5]), ill_formed()),
        )
    )
    found.append(
        Case(
            "list<dictionary>",
            pa.array([["a"], ["a", "b"], None, []], pa.list_(pa.dictionary(pa.int32(), text))),
        )
    )
    found.append(
        Case(
            "run_end<string>",
            pa.RunEndEncodedArray.from_arrays(
                pa.array([2, 3, 5], pa.int32()), pa.array(["a", None, "😀"])
            ),
        )
    )
    found.append(
        Case(
            "run_end<int64>",
            pa.RunEndEncodedArray.from_arrays(
                pa.array([2, 3], pa.int16()), pa.array([1, 2**63 - 1])
            ),
        )
    )
    import uuid

    raw = [
        uuid.UUID(int=0).bytes,
        uuid.UUID(int=2**128 - 1).bytes,
        uuid.UUID("12345678-1234-5678-1234-567812345678").bytes,
        None,
    ]
    found.append(
        Case("uuid", pa.ExtensionArray.from_storage(pa.uuid(), pa.array(raw, pa.binary(16))))
    )
    found.append(
        Case(
            "json",
            pa.ExtensionArray.from_storage(
                pa.json_(), pa.array(['{"a": 1}', "null", "not json", "[1.0]", None])
            ),
        )
    )
    found.append(
        Case(
            "bool8",
            pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, 7, None], pa.int8())),
        )
    )
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array(raw[:3], pa.binary(16)))
    found.append(Case("list<uuid>", pa.ListArray.from_arrays([0, 1, None, 3], ids)))
    found.append(Case("struct<uuid>", pa.StructArray.from_arrays([ids], ["u"])))
    kinds = pa.array([0, 1, 0], pa.int8())
    sparse = pa.UnionArray.from_sparse(kinds, [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])])
    dense = pa.UnionArray.from_dense(
        kinds, pa.array([0, 0, 1], pa.int32()), [pa.array([1, 3]), pa.array(["b"])]
    )
    found += [Case("sparse_union", sparse), Case("dense_union", dense)]
    return found


def all_cases() -> list[Case]:
    return plain_cases() + nested_cases()
