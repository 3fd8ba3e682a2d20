"""Find the rows for which a transform raises: one job in place of one for each row.

An exception ends a job of Spark, and names a value at best. So the plan of the transform's result is made
again with guards, and run on rows that have numbers: each expression of its projections and filters is
evaluated by what `try_add` is made of, which has null for an exception; a Python function returns what it
raises as a value. The rows that these name are tried by the transform itself, one for each expression.

Guarded is what works on rows alone, from our rows up to the first other node, such as a join or an
aggregation. Only a session with a JVM in reach shows its plans: with Spark Connect nothing is found here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import structlog

from ...columns.kinds import whole
from ...columns.texts import excerpt, python_values
from ..answers import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from ...columns.fitted import Fitted

_NUMBER: Final = "kmr row"
_FLAG: Final = "kmr raised"
_MOST_TRIED: Final = 16  # expressions that raise; rows of others are found in another way
_LONGEST: Final = 100  # characters of an expression
_ROW_BY_ROW: Final = {100: False, 101: True}  # Python functions on single values: with Arrow?
_VECTORIZED: Final = 200  # pandas functions on columns
_AS_BELOW: Final = ("SubqueryAlias", "View", "ResolvedHint", "Repartition", "Sort")
# Interpreted, because compiled code may evaluate a shared part of two expressions outside of their guards.
_SETTINGS: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.subexpressionElimination.enabled": "false",
}
_log = structlog.get_logger(__name__)


class _Unguarded(Exception):
    """An expression of which no guard is known."""


class _Guarded(NamedTuple):
    """An expression: the column that it makes, its SQL, the columns of the rows that it takes values from."""

    name: str
    sql: str
    inputs: tuple[str, ...]

    def values(self, rows: pa.Table) -> list[str]:
        """Return the values that it takes from each of some rows; empty texts if it takes none."""
        names = [name for name in self.inputs if name in rows.column_names]
        columns = [python_values(whole(rows.column(name))) for name in names]
        if not columns:
            return [""] * rows.num_rows
        return [
            ", ".join(f"{name}={excerpt(value)}" for name, value in zip(names, row, strict=True))
            for row in zip(*columns, strict=True)
        ]


def raising(
    session: SparkSession,
    transform: Callable[[DataFrame], DataFrame | None],
    rows: pa.Table,
    refusal: Callable[[Exception], str | None],
    fit: Callable[[pa.Table], Fitted] | None = None,
) -> dict[int, str]:
    """Return the numbers of rows for which a transform raises, with the reasons; perhaps not of all.

    Args:
        refusal: returns the reason of an exception that is about some of the rows; None of another one.
        fit: casts the result to the columns of its destination: rows that do not fit are found, too.
    """
    if not hasattr(session, "_jsparkSession"):
        return {}
    try:
        frame = session.createDataFrame(rows)
        made: Any = transform(frame)
        guard = _Guard(session, rows, frame)
        found = guard.run(made._jdf.queryExecution().analyzed(), fit)  # noqa: SLF001
    except Exception as error:  # noqa: BLE001  the rows are found in another way
        _log.debug("a plan cannot be guarded", reason=one_line(str(error)))
        return {}
    refused = dict(found.misfits)
    for number, numbers in list(found.raised.items())[:_MOST_TRIED]:
        first = numbers[0]
        words = _words(session, transform, rows.slice(first, 1), refusal)
        if words is None:
            continue
        if (texts := found.texts.get(number)) is not None:
            refused.update(zip(numbers, map(one_line, texts), strict=True))
            continue
        expression = guard.expressions[number]
        told = expression.values(rows.take(pa.array(numbers)))
        for row, values in zip(numbers, told, strict=True):
            of = f" of {values}" if values else ""
            other = f", as of {told[0]}" if values != told[0] else ""
            refused[row] = f"column {expression.name}: {expression.sql}{of}{other}: {words}"
    return refused


def _words(
    session: SparkSession,
    transform: Callable[[DataFrame], DataFrame | None],
    row: pa.Table,
    refusal: Callable[[Exception], str | None],
) -> str | None:
    """Return Spark's words about one row; None if the transform does not raise."""
    try:
        made: Any = transform(session.createDataFrame(row))
        made.toArrow()
    except Exception as error:  # noqa: BLE001
        return refusal(error)
    return None


@dataclass(slots=True)
class _Found:
    """The rows that were found: by the number of the expression that raises, and those that do not fit."""

    raised: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, list[str]] = field(default_factory=dict)
    misfits: dict[int, str] = field(default_factory=dict)


class _Guard:
    """Makes a plan again, with guards.

    Attributes:
        expressions: those that are guarded, by their numbers.
    """

    def __init__(self, session: SparkSession, rows: pa.Table, frame: DataFrame) -> None:
        any_session: Any = session
        self._session, self._rows = any_session, rows
        self._jvm = any_session._jvm  # noqa: SLF001
        self._made = self._jvm.org.apache.spark.sql.catalyst.expressions
        self._leaf = _plan(frame).output()
        self._frame: Any = None
        self._inputs: dict[str, tuple[str, ...]] = {}
        self.expressions: list[_Guarded] = []

    def run(self, plan: Any, fit: Callable[[pa.Table], Fitted] | None) -> _Found:
        """Run a plan with guards on the rows."""
        path = self._path(plan)
        if path is None:
            raise _Unguarded("it does not read our rows")
        self._start()
        is_whole = all(self._guard(node) for node in path)
        result = self._result(with_columns=is_whole and fit is not None)
        found = _Found()
        numbers, flags = (result.column(at).to_pylist() for at in (0, 1))
        for row, flag in zip(numbers, flags, strict=True):
            if flag is None:
                continue
            number, _, text = flag.partition(" ")
            found.raised.setdefault(int(number), []).append(row)
            if text:
                found.texts.setdefault(int(number), []).append(text)
        if fit is not None and is_whole:
            good = pa.compute.is_null(result.column(1))
            kept = result.filter(good)
            misfits = fit(kept.select(range(2, kept.num_columns))).refused
            numbers = kept.column(0).to_pylist()
            found.misfits = {
                numbers[at]: f"a row of the transform does not fit: {why}"
                for at, why in misfits.items()
            }
        return found

    def _path(self, node: Any) -> list[Any] | None:
        """Return the nodes above our rows, the lowest first; None if they are not below this one."""
        children = node.children()
        if not children.size():
            return [] if node.output().toString() == self._leaf.toString() else None
        for at in range(children.size()):
            path = self._path(children.apply(at))
            if path is not None:
                return [*path, node]
        return None

    def _start(self) -> None:
        """Begin with our rows, their numbers, and no flag."""
        numbers = pa.array(range(self._rows.num_rows), pa.int64())
        names = [f"kmr {at}" for at in range(self._rows.num_columns)]
        table = self._rows.rename_columns(names).append_column(_NUMBER, numbers)
        own = self._session.newSession()
        for name, value in _SETTINGS.items():
            own.conf.set(name, value)
        self._frame = own.createDataFrame(table)
        output = self._output()
        columns = []
        for at, name in enumerate(self._rows.column_names):
            attribute = self._leaf.apply(at)
            columns.append(self._named(output[at], attribute))
            self._inputs[attribute.toString()] = (name,)
        from pyspark.sql import functions

        flag = functions.lit(None).cast("string").alias(_FLAG)
        self._frame = self._frame.select(self._column(output[-1]), flag, *columns)

    def _guard(self, node: Any) -> bool:
        """Add a node with guards; return False if it has none."""
        kind = node.getClass().getSimpleName()
        if kind in _AS_BELOW:
            return True
        before = self._frame
        try:
            if kind == "Project":
                self._project(_items(node.projectList()))
                return True
            if kind == "Filter":
                self._filter(node.condition())
                return True
        except _Unguarded:
            self._frame = before
        return False

    def _project(self, outputs: Sequence[Any]) -> None:
        bodies = [each.child() if _kind(each) == "Alias" else each for each in outputs]
        inputs = [self._inputs_of(each) for each in bodies]
        values = self._evaluated(bodies, [each.name() for each in outputs])
        columns = [
            self._column(each)
            if _kind(each) == "AttributeReference"
            else self._named(value, each.toAttribute())
            for value, each in zip(values, outputs, strict=True)
        ]
        number, flag, *_ = self._output()
        self._frame = self._frame.select(self._column(number), self._column(flag), *columns)
        for each, names in zip(outputs, inputs, strict=True):
            self._inputs[each.toAttribute().toString()] = names

    def _filter(self, condition: Any) -> None:
        count = len(self._output())
        (value,) = self._evaluated([condition], ["of a filter"])
        output = self._output()
        flagged = self._column(output[1]).isNotNull()
        self._frame = self._frame.where(flagged | self._column(value)).select(
            *map(self._column, output[:count])
        )

    def _evaluated(self, expressions: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """Return expressions of guarded columns, which have the values of others, or null."""
        from pyspark.sql import functions

        replaced = [
            self._without_functions(each, name)
            for each, name in zip(expressions, names, strict=True)
        ]
        guarded = [at for at, each in enumerate(replaced) if _kind(each) not in _SAFE]
        if not guarded:
            return replaced
        structs = [
            self._made.TryEval(self._made.CreateStruct.create(self._seq([replaced[at]])))
            for at in guarded
        ]
        attributes = self._added([self._column(each) for each in structs])
        raised = [functions.isnull(self._column(each)) for each in attributes]
        numbers = [self._note(expressions[at], names[at]) for at in guarded]
        self._flag(
            functions.when(is_null, functions.lit(str(number)))
            for is_null, number in zip(raised, numbers, strict=True)
        )
        for at, attribute in zip(guarded, attributes, strict=True):
            replaced[at] = self._field(attribute, 0)
        return replaced

    def _without_functions(self, expression: Any, name: str) -> Any:
        """Return an expression whose Python functions are replaced by columns with their values."""
        pattern = self._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
        if not expression.containsPattern(pattern):
            return expression
        children = _items(expression.children())
        if _kind(expression) != "PythonUDF":
            replaced = [self._without_functions(each, name) for each in children]
            return expression.withNewChildren(self._seq(replaced))
        from pyspark.sql import functions

        guarded = self._function(expression)
        arguments = self._evaluated(children, [name] * len(children))
        (result,) = self._added([guarded(*map(self._column, arguments))])
        number = self._note(expression, name)
        text = self._column(self._field(result, 1))
        self._flag([functions.concat(functions.lit(f"{number} "), text)])
        return self._field(result, 0)

    def _function(self, expression: Any) -> Any:
        """Return a Python function that has what another one returns, and what it raises."""
        from pyspark.serializers import CloudPickleSerializer
        from pyspark.sql import functions, types

        kind = expression.evalType()
        command = bytes(expression.func().command().unsafeArray())
        serializer: Any = CloudPickleSerializer
        loaded = serializer().loads(command)
        named = any(_kind(each).startswith("Named") for each in _items(expression.children()))
        if not isinstance(loaded, tuple) or len(loaded) != 2 or named:
            raise _Unguarded
        function, returned = loaded
        result = types.StructType(
            [types.StructField("value", returned), types.StructField("error", types.StringType())]
        )
        if kind in _ROW_BY_ROW:
            return functions.udf(_row_by_row(function), result, useArrow=_ROW_BY_ROW[kind])
        if kind == _VECTORIZED and not isinstance(returned, types.StructType):
            any_functions: Any = functions
            return any_functions.pandas_udf(_vectorized(function), result)
        raise _Unguarded

    def _note(self, expression: Any, name: str) -> int:
        sql = one_line(expression.sql())[:_LONGEST]
        self.expressions.append(_Guarded(name, sql, self._inputs_of(expression)))
        return len(self.expressions) - 1

    def _inputs_of(self, expression: Any) -> tuple[str, ...]:
        used = [each.toString() for each in _items(expression.references().toSeq())]
        return tuple(dict.fromkeys(name for each in used for name in self._inputs.get(each, ())))

    def _flag(self, flags: Any) -> None:
        from pyspark.sql import functions

        number, flag, *others = map(self._column, self._output())
        new = functions.coalesce(flag, *flags).alias(_FLAG)
        self._frame = self._frame.select(number, new, *others)

    def _added(self, columns: Sequence[Any]) -> list[Any]:
        """Add columns at the end; return their attributes."""
        named = [each.alias(f"kmr guard {at}") for at, each in enumerate(columns)]
        self._frame = self._frame.select(*map(self._column, self._output()), *named)
        return self._output()[-len(columns) :]

    def _result(self, *, with_columns: bool) -> Any:
        frame = self._frame
        if not with_columns:
            number, flag, *_ = map(self._column, self._output())
            frame = frame.select(number, flag).where(flag.isNotNull())
        return frame.toArrow()

    def _output(self) -> list[Any]:
        return _items(_plan(self._frame).output())

    def _named(self, expression: Any, attribute: Any) -> Any:
        """Return a column that has another expression, and the identity of an attribute."""
        nothing = self._jvm.scala.Option.empty()
        alias = self._made.Alias(
            *(expression, attribute.name(), attribute.exprId(), self._seq([])),
            *(nothing, self._seq([])),
        )
        return self._column(alias)

    def _field(self, attribute: Any, at: int) -> Any:
        return self._made.GetStructField(attribute, at, self._jvm.scala.Option.empty())

    def _column(self, expression: Any) -> Any:
        from pyspark.sql.classic.column import Column

        return Column(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))

    def _seq(self, items: Sequence[Any]) -> Any:
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(list(items))


_SAFE: Final = ("AttributeReference", "Literal", "GetStructField")


def _plan(frame: Any) -> Any:
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]


def _teller() -> Callable[[BaseException], str]:
    """Return a function that tells an exception in one line.

    It and those around it run in executors, which need not have this package: they are pickled by value.
    """

    def tell(error: BaseException) -> str:
        import traceback

        told = traceback.format_exception_only(error)
        line = next((each for each in told if each[:1] != " "), "").partition("\n")[0]
        return line.encode(errors="backslashreplace").decode()

    return tell


def _row_by_row(function: Callable[..., Any]) -> Callable[..., Any]:
    tell = _teller()

    def guarded(*values: Any) -> Any:
        try:
            return function(*values), None
        except (Exception, SystemExit) as error:  # noqa: BLE001
            return None, tell(error)

    return guarded


def _vectorized(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function on columns; where it raises, they are divided down to the rows."""

    import pandas as pd  # type: ignore[import-untyped]

    tell = _teller()

    def guarded(*columns: Any) -> Any:
        values: list[Any] = []
        errors: list[Any] = []
        todo = [(0, len(columns[0]))]
        while todo:
            start, stop = todo.pop()
            try:
                made = function(*(each.iloc[start:stop] for each in columns))
                values += made.astype(object).tolist()
                errors += [None] * (stop - start)
            except (Exception, SystemExit) as error:  # noqa: BLE001
                if stop - start > 1:
                    step = max(1, (stop - start) // 8)
                    todo += [(at, min(at + step, stop)) for at in range(start, stop, step)][::-1]
                    continue
                values.append(None)
                errors.append(tell(error))
        return pd.DataFrame(
            {"value": pd.Series(values, dtype=object), "error": pd.Series(errors, dtype=object)}
        )

    guarded.__annotations__ = {"columns": pd.Series, "return": pd.DataFrame}  # what Spark goes by
    return guarded
