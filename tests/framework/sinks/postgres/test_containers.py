"""PostgreSQL stores lists, objects and text as arrays, ranges and composites, or refuses the row."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from .writing import execute, flush, opened, query, refused, rows

if TYPE_CHECKING:
    from kmr.reducers.reducer import Context

pytestmark = pytest.mark.usefixtures("closed_at_the_end")

TYPES: Final = (
    "CREATE TYPE pair AS (price numeric(5,2), code varchar(2), at timestamp(0))",
    "CREATE DOMAIN prices AS numeric(5,2)[]",
    "CREATE DOMAIN code AS varchar(2)",
    "CREATE TYPE spans AS RANGE (subtype = time)",
)
CHANGED_BY_THE_SERVER: Final = (
    ("numeric(5,2)[]", "{1.00,1.005}"),
    ("numeric(3,1)[][]", "{{1.5},{1.25}}"),
    ("numeric(3,1)[]", "[0:1]={1.5,1.25}"),
    ("prices", "{1.005}"),
    ("timestamp(0)[]", '{"2026-01-01 00:00:00.7"}'),
    ("timestamp[]", '{"2026-01-01 00:00:00+05"}'),
    ("timestamptz[]", "{2026-01-01 00:00:00.1234567Z}"),
    ("time(0)[]", "{12:00:00.9}"),
    ("interval(0)[]", "{00:00:01.7}"),
    ("date[]", "{2026-01-01 23:00}"),
    ("varchar(2)[]", '{ab,"ab  "}'),
    ("code[]", '{"ab "}'),
    ("name[]", "{" + "a" * 64 + "}"),
    ('"char"[]', "{ab}"),
    ("money[]", "{1.005}"),
    ("tsrange", '["2026-01-01 00:00:00.1234567",)'),
    ("tsmultirange", "{[2026-01-01 00:00:00,2026-01-01 00:00:00.1234567)}"),
    ("spans", "[12:00:00.1234567,13:00)"),
    ("pair", "(1.005,ab,)"),
    ("pair", '(1,"ab ",)'),
    ("pair[]", '{"(1,ab,\\"2026-01-01 00:00:00.7\\")"}'),
    ("jsonb", '{"a": 1, "a": 2}'),
    ("real", "16777217"),
    ("date", "2026-01-01 23:00"),
    ("interval", "$1.5"),
    ("money", "1,5"),
    ("money", "none"),
    ("macaddr", "2026-01-01"),
    ("cidr", "10"),
)
KEPT: Final = (
    ("numeric(5,2)[]", "{1.00,NULL,-999.99}", "{1.00,NULL,-999.99}"),
    ("numeric[]", "{1.005}", "{1.005}"),
    ("prices", "{}", "{}"),
    ("timestamp(0)[]", '{"2026-01-01 00:00:00.0",infinity}', '{"2026-01-01 00:00:00",infinity}'),
    ("timestamptz(3)[]", '{"2026-01-01 00:00:00.123+00"}', '{"2026-01-01 00:00:00.123+00"}'),
    ("date[]", "{2026-01-01,2026-02-01T00:00:00}", "{2026-01-01,2026-02-01}"),
    ("text[]", '{"a,\\"b\\\\",NULL,"NULL","}"}', '{"a,\\"b\\\\",NULL,"NULL","}"}'),
    ("varchar(2)[]", "{ab,é}", "{ab,é}"),
    ("int4range", "[1,5)", "[1,5)"),
    ("numrange", "empty", "empty"),
    ("pair", '(1.00,"a""",)', '(1.00,"a""",)'),
    ("pair[]", "{}", "{}"),
    ("integer[]", "{1,2}", "{1,2}"),
    ("jsonb", '{"a": {"a": 1}}', '{"a": {"a": 1}}'),
    ("date", "2026-01-01T00:00:00Z", "2026-01-01"),
    ("interval", "@ 1 minute ago", "-00:01:00"),
    ("interval", "P1DT2.5S", "1 day 00:00:02.5"),
    ("money", "-$1,000.50", "-$1,000.50"),
    ("macaddr", "08002b010203", "08:00:2b:01:02:03"),
    ("cidr", "10.0.0.0/8", "10.0.0.0/8"),
)


async def test_what_the_server_would_round_or_cut_inside_of_a_value_refuses_its_row(
    postgres_url: str, context: Context
) -> None:
    kinds = [kind for kind, *_ in (*CHANGED_BY_THE_SERVER, *KEPT)]
    texts = [text for _, text, *_ in (*CHANGED_BY_THE_SERVER, *KEPT)]
    columns = "".join(f", c{at} {kind}" for at, kind in enumerate(kinds))
    execute(postgres_url, *TYPES, f'CREATE TABLE hits ("offset" bigint{columns})')
    writer = await opened(postgres_url + "%20-ctimezone%3DUTC", context)
    count = len(kinds)
    cells = {
        f"c{at}": pa.array([text if row == at else None for row in range(count)])
        for at, text in enumerate(texts)
    }
    found = dict(refused(await flush(writer, rows(0, count - 1, **cells))))
    changed = range(len(CHANGED_BY_THE_SERVER))
    assert sorted(found) == list(changed)
    assert all(f"column c{row} " in reason for row, reason in found.items())
    for row, (_, _, expected) in enumerate(KEPT, len(changed)):
        stored = query(postgres_url, f'SELECT c{row}::text FROM hits WHERE "offset" = {row}')
        assert stored == [expected]


DAY: Final = date(2026, 1, 31)
MOMENT: Final = datetime(2026, 1, 31, 12, 0, 0, 250_000, tzinfo=UTC)
OBJECTS_KEPT: Final[tuple[tuple[str, Any, str], ...]] = (
    ("integer[]", [1, None, -3], "{1,NULL,-3}"),
    ("integer[]", [], "{}"),
    ("integer[]", [[1, 2], [3, 4]], "{{1,2},{3,4}}"),
    ("text[]", ['a,"b\\', "NULL", "", "{x}", " "], r"""{"a,\"b\\","NULL","","{x}"," "}"""),
    ("real[]", [1.5, 16777216.0, float("inf")], "{1.5,1.6777216e+07,Infinity}"),
    ("boolean[]", [True, False], "{t,f}"),
    ("numeric(5,2)[]", [Decimal("1.50")], "{1.50}"),
    ("bytea[]", [b"\0\xff", b""], r"""{"\\x00ff","\\x"}"""),
    ("date[]", [DAY], "{2026-01-31}"),
    ("timestamptz(3)[]", [MOMENT], '{"2026-01-31 12:00:00.25+00"}'),
    ("interval[]", [timedelta(hours=1)], "{01:00:00}"),
    ("jsonb[]", [{"a": [1]}, {"a": []}], r"""{"{\"a\": [1]}","{\"a\": []}"}"""),
    ("pair", {"price": 1.5, "code": 'a"', "at": None}, '(1.50,"a""",)'),
    ("pair", {"code": "ab"}, "(,ab,)"),
    ("pair[]", [{"price": 2.25}, None], '{"(2.25,,)",NULL}'),
    ("nested", {"p": {"code": "x"}, "tags": ["a", 'b"c']}, r"""("(,x,)","{a,""b\\""c""}")"""),
    ("code[]", ["ab"], "{ab}"),
    ("jsonb", [1, 2], "[1, 2]"),
)
OBJECTS_REFUSED: Final[tuple[tuple[str, Any, str], ...]] = (
    ("integer[]", [1, 2**31], "c{at}[] (integer[]) cannot hold [1, 2147483648]"),
    ("integer[]", [1.5], "c{at}[] (integer[]) cannot hold [1.5]"),
    ("integer[]", [[1], []], "c{at}[] (integer[]) cannot hold [[1], []]"),
    ("real[]", [1e300], "c{at}[] (real[]) cannot hold [1e+300]"),
    ("varchar(2)[]", ["abc"], "c{at}[] (character varying(2)[]) cannot hold"),
    ("text[]", ["a\0"], "c{at}[] (text[]) cannot hold"),
    ("date[]", ["2026-01-31 12:00"], "c{at}[] (date[]) cannot hold"),
    ("pair", {"price": 1.005}, "c{at}.price (pair) cannot hold 1.005"),
    ("pair", {"price": 1, "more": 2}, "c{at}.more (pair) cannot hold 2"),
    ("pair[]", [{"code": "abc"}], "c{at}[].code (pair[]) cannot hold"),
    ("pair", [1], "c{at} (pair) cannot hold list<item: int64>: list<item: int64> is no such value"),
    ("int4range", [1, 5], "c{at} (int4range) cannot hold list<item: int64>: "),
)


async def test_lists_and_objects_are_arrays_and_composites_or_their_rows_are_refused(
    postgres_url: str, context: Context
) -> None:
    cases = [(kind, value) for kind, value, _ in (*OBJECTS_KEPT, *OBJECTS_REFUSED)]
    columns = "".join(f", c{at} {kind}" for at, (kind, _) in enumerate(cases))
    nested = "CREATE TYPE nested AS (p pair, tags text[])"
    execute(postgres_url, *TYPES, nested, f'CREATE TABLE hits ("offset" bigint{columns})')
    writer = await opened(postgres_url + "%20-ctimezone%3DUTC", context)
    count = len(cases)
    cells = {
        f"c{at}": pa.array([value if row == at else None for row in range(count)])
        for at, (_, value) in enumerate(cases)
    }
    found = dict(refused(await flush(writer, rows(0, count - 1, **cells))))
    for row, (_, value, expected) in enumerate(OBJECTS_KEPT):
        assert row not in found, (value, found[row])
        stored = query(postgres_url, f'SELECT c{row}::text FROM hits WHERE "offset" = {row}')
        assert stored == [expected]
    for row, (_, _, reason) in enumerate(OBJECTS_REFUSED, len(OBJECTS_KEPT)):
        assert found[row].startswith("column " + reason.format(at=row))
