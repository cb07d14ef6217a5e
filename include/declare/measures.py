"""Measures of additive gold: what `pipeline.yaml` declares of each.

A measure of one expression is declared as `{sum: litres}`; one with parameters as `{top_k: {value: place, k: 3}}`.
Every measure merges: the same rows give the same value, however they were batched and ordered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field, StrictInt
from pydantic.dataclasses import dataclass

from include.declare.yaml_declarations import CONFIG, Finding, InvalidValue, shown
from include.ground.sql_quoting import sql_identifier

QUANTILE_ERROR = 0.01
"""Relative error of an `approx_quantile`, at most."""
SUM_ERROR = 1e-9
"""The relative difference up to which two sums of doubles are equal, since the last digits depend on the order of rows.

Only older releases have such sums; newer ones may not declare one.
"""
DIGITS = 9


@plain_dataclass(frozen=True)
class Function:
    """What is declared of a function: `parameters` (`value` is the expression), those that may be left out, and more.

    `merged_by`: the aggregate that merges values of a function whose state is its value. `placed`: it takes one row by
    its `by`, then its partition and offset, the `earliest` or the last. `exact`: its values may be divided by others.
    """

    parameters: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    merged_by: Literal["sum", "min", "max", ""] = ""
    placed: bool = False
    earliest: bool = False
    exact: bool = False
    added_up: bool = False

    @property
    def by_time(self) -> bool:
        """Whether it takes one row by the event time, which is not declared."""
        return self.placed and not self.parameters


FUNCTIONS: dict[str, Function] = {
    "count": Function(merged_by="sum", exact=True),
    "count_if": Function(merged_by="sum", exact=True),
    "sum": Function(merged_by="sum", exact=True, added_up=True),
    "min": Function(merged_by="min"),
    "max": Function(merged_by="max"),
    "avg": Function(added_up=True),
    "approx_distinct": Function(),
    "count_distinct": Function(exact=True),
    "first": Function(placed=True, earliest=True),
    "last": Function(placed=True),
    "min_by": Function(("value", "by"), placed=True, earliest=True),
    "max_by": Function(("value", "by"), placed=True),
    "top_k": Function(("value", "k"), ("weight",)),
    "approx_quantile": Function(("value", "at")),
    "histogram": Function(("value", "bounds")),
    "ratio": Function(("of", "to")),
}
if TYPE_CHECKING:
    FunctionName: TypeAlias = str
else:
    FunctionName = Literal[tuple(FUNCTIONS)]


@dataclass(frozen=True, config=CONFIG)
class Measure:
    """One measure: a function over an SQL expression of silver columns (`*`: any row; empty: a ratio).

    `by` orders the rows of first, last, min_by and max_by; `k` is how many values a top_k keeps; `at` is the quantile,
    0.5 for the median; `weight` is an integer that a top_k adds up instead of counting rows; `bounds` separate the bins
    of a histogram; `of` and `to` are the measures of a ratio.
    """

    name: str
    function: FunctionName
    expression: str = ""
    by: str = ""
    weight: str = ""
    k: Annotated[StrictInt, Field(ge=1, le=1000)] = 1
    at: Annotated[float, Field(ge=0, le=1)] = 0.5
    bounds: Annotated[tuple[Annotated[float, Field(allow_inf_nan=False)], ...], Field(max_length=100)] = ()
    of: str = ""
    to: str = ""

    @property
    def declared(self) -> Function:
        return FUNCTIONS[self.function]

    @property
    def added_up(self) -> tuple[str, ...]:
        """The expressions of which values are added up."""
        values = (self.expression,) if self.declared.added_up else ()
        return (*values, self.weight) if self.weight else values


def parsed_measures(value: Any) -> Any:
    """Return the measures of a mapping `name: {function: expression or parameters}`, as mappings with `name`."""
    if not isinstance(value, dict):
        return value
    for name, item in value.items():
        if not isinstance(item, dict) or len(item) != 1:
            raise InvalidValue(f"must have one function and its expression, like {{sum: x}}, is {shown(item)}", name)
    return [_parsed(name, function, given) for name, item in value.items() for function, given in item.items()]


def _parsed(name: str, function: str, given: Any) -> dict[str, Any]:
    declared = FUNCTIONS.get(function, Function())
    if not declared.parameters:
        return {"name": name, "function": function, "expression": given}
    if not isinstance(given, dict) or set(given) - set(declared.optional) != set(declared.parameters):
        raise InvalidValue(f"must have {' and '.join(declared.parameters)}, is {shown(given)}", name, function)
    renamed = {"expression" if key == "value" else key: item for key, item in given.items()}
    return {"name": name, "function": function, **renamed}


def ordered_by_time(measures: Sequence[Measure], event_time: str) -> tuple[Measure, ...]:
    """Return the measures; `first` and `last` are by event time."""
    return tuple(replace(each, by=event_time) if each.declared.by_time else each for each in measures)


def measure_expressions(measure: Measure) -> Iterator[Finding]:
    """Yield each SQL expression of a measure, with its key below the measure."""
    parameters = measure.declared.parameters
    if not parameters and (measure.function, measure.expression) != ("count", "*"):
        yield (measure.function,), measure.expression
    if "value" in parameters:
        yield (measure.function, "value"), measure.expression
    if "by" in parameters:
        yield (measure.function, "by"), measure.by
    if measure.weight:
        yield (measure.function, "weight"), measure.weight


def measures_findings(measures: Sequence[Measure]) -> Iterator[Finding]:
    """Yield what is wrong with the measures of one table, apart from their SQL."""
    divisible = {each.name for each in measures if each.declared.exact}
    for measure in measures:
        place, parameters = (measure.name, measure.function), measure.declared.parameters
        for key in [each for each in ("of", "to") if each in parameters]:
            if (other := getattr(measure, key)) not in divisible:
                listed = ", ".join(sorted(divisible)) or "none is declared"
                yield (*place, key), f"must be a count or sum of this table ({listed}), is {shown(other)}"
        if "bounds" in parameters and not measure.bounds:
            yield (*place, "bounds"), "must have at least one number"
        if any(low >= high for low, high in pairwise(measure.bounds)):
            yield (*place, "bounds"), f"must ascend, are {', '.join(f'{each:g}' for each in measure.bounds)}"


def rounded_sql(column: str) -> str:
    """Return DuckDB's SQL of a column of doubles as the text of its first digits; -0.0 is 0.0."""
    return f"format('{{:.{DIGITS - 1}e}}', {sql_identifier(column)} + 0.0)"
