"""The values of gold's expressions for each row of silver, computed by Spark while silver is written (adr-0012).

An *input* is a column with the value of one expression of `pipeline.yaml`, computed once for all tables that use it.
Inputs are passed to the merges of gold in memory, and stored nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.declare.windows import Window
from spark_jobs.layers.gold_windows import windowed


@dataclass(frozen=True)
class Expression:
    """Spark SQL over silver's rows that count by `where`; with a `window`, also over its column."""

    sql: str
    where: str = "true"
    window: Window | None = None


@dataclass
class GoldInputs:
    """The inputs of one release's gold tables, and the columns of silver that the merges read directly."""

    silver: tuple[str, ...]
    columns: dict[str, None] = field(default_factory=dict)
    inputs: dict[Expression, str] = field(default_factory=dict)

    def column(self, name: str) -> str:
        """Return the column of silver, and note that the merges read it."""
        self.columns[name] = None
        return name

    def of(self, sql: str, where: str = "true", window: Window | None = None) -> str:
        """Return the name of the column that has an expression's value: silver's own, or an input."""
        if sql.strip() in self.silver and window is None:
            return self.column(sql.strip())
        return self.inputs.setdefault(Expression(sql, where, window), f"_input_{len(self.inputs)}")

    @property
    def names(self) -> list[str]:
        return [*self.columns, *self.inputs.values()]

    def added(self, silver: DataFrame) -> DataFrame:
        """Return rows of silver with the inputs as further columns."""
        plain = [F.expr(_guarded(each)).alias(name) for each, name in self.inputs.items() if each.window is None]
        rows = silver.select("*", *plain)
        timed = [(each, name) for each, name in self.inputs.items() if each.window is not None]
        return reduce(lambda frame, each: _with_timed(frame, *each), timed, rows)

    def merge_rows(self, silver: DataFrame) -> DataFrame:
        """Return rows of silver with the columns that the merges read."""
        return self.added(silver).select(*self.names)


def _with_timed(rows: DataFrame, expression: Expression, name: str) -> DataFrame:
    assert expression.window is not None
    return windowed(expression.window, rows).select(*rows.columns, F.expr(_guarded(expression)).alias(name))


def _guarded(expression: Expression) -> str:
    """Return the SQL; it is not evaluated for rows that do not count, on which it may fail."""
    if expression.where == "true":
        return expression.sql
    return f"case when (\n{expression.where}\n) then (\n{expression.sql}\n) end"
