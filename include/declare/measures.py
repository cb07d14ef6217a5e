"""Measures of additive gold: what `pipeline.yaml` declares of each.

A measure of one expression is declared as `{sum: litres}`; one with parameters as `{top_k: {value: place, k: 3}}`.
Every measure merges: the same rows give the same value, however they were batched and ordered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StrictInt
from pydantic.dataclasses import dataclass

from include.declare.yaml_declarations import Finding, InvalidValue, shown

MeasureFunction = (
    Literal["count", "count_if", "sum", "min", "max", "avg", "approx_distinct", "count_distinct", "first", "last"]
    | Literal["min_by", "max_by", "top_k", "approx_quantile", "histogram", "ratio"]
)
PARAMETERS: dict[str, tuple[str, ...]] = {
    "min_by": ("value", "by"),
    "max_by": ("value", "by"),
    "top_k": ("value", "k"),
    "approx_quantile": ("value", "at"),
    "histogram": ("value", "bounds"),
    "ratio": ("of", "to"),
}
"""Functions with parameters; `value` is the expression."""
OPTIONAL = {"top_k": ("weight",)}
"""Parameters that may be left out."""
EARLIEST = ("first", "min_by")
"""Functions that take the row with the least `by`."""
PLACED = (*EARLIEST, "last", "max_by")
"""Functions that take one row by its `by`, then its partition and offset."""
MERGED_BY: dict[str, Literal["sum", "min", "max"]] = {
    "count": "sum",
    "count_if": "sum",
    "sum": "sum",
    "min": "min",
    "max": "max",
}
"""The aggregate that merges values of functions whose state is their value."""
OF_NUMBERS = ("approx_quantile", "histogram")
EXACT_NUMBERS = ("count", "count_if", "sum", "count_distinct")
"""Functions whose values may be divided by each other."""
QUANTILE_ERROR = 0.01
"""Relative error of an `approx_quantile`, at most."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Measure:
    """One measure: a function over an SQL expression of silver columns (`*`: any row; empty: a ratio).

    `by` orders the rows of first, last, min_by and max_by; `k` is how many values a top_k keeps; `at` is the quantile,
    0.5 for the median; `weight` is an integer that a top_k adds up instead of counting rows; `bounds` separate the bins
    of a histogram; `of` and `to` are the measures of a ratio.
    """

    name: str
    function: MeasureFunction
    expression: str = ""
    by: str = ""
    weight: str = ""
    k: Annotated[StrictInt, Field(ge=1, le=1000)] = 1
    at: Annotated[float, Field(ge=0, le=1)] = 0.5
    bounds: Annotated[tuple[Annotated[float, Field(allow_inf_nan=False)], ...], Field(max_length=100)] = ()
    of: str = ""
    to: str = ""

    @property
    def added_up(self) -> tuple[str, ...]:
        """The expressions of which values are added up."""
        values = (self.expression,) if self.function in ("sum", "avg") else ()
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
    expected = PARAMETERS.get(function)
    if expected is None:
        return {"name": name, "function": function, "expression": given}
    if not isinstance(given, dict) or set(given) - set(OPTIONAL.get(function, ())) != set(expected):
        raise InvalidValue(f"must have {' and '.join(expected)}, is {shown(given)}", name, function)
    renamed = {"expression" if key == "value" else key: item for key, item in given.items()}
    return {"name": name, "function": function, **renamed}


def ordered_by_time(measures: Sequence[Measure], event_time: str) -> tuple[Measure, ...]:
    """Return the measures; `first` and `last` are by event time."""
    by_time = {"first", "last"}
    return tuple(replace(each, by=event_time) if each.function in by_time else each for each in measures)


def measure_expressions(measure: Measure) -> Iterator[Finding]:
    """Yield each SQL expression of a measure, with its key below the measure."""
    parameters = PARAMETERS.get(measure.function)
    if parameters is None and (measure.function, measure.expression) != ("count", "*"):
        yield (measure.function,), measure.expression
    if parameters is not None and "value" in parameters:
        yield (measure.function, "value"), measure.expression
    if parameters is not None and "by" in parameters:
        yield (measure.function, "by"), measure.by
    if measure.weight:
        yield (measure.function, "weight"), measure.weight


def measures_findings(measures: Sequence[Measure]) -> Iterator[Finding]:
    """Yield what is wrong with the measures of one table, apart from their SQL."""
    divisible = {each.name for each in measures if each.function in EXACT_NUMBERS}
    for measure in measures:
        place = (measure.name, measure.function)
        for key in PARAMETERS["ratio"] if measure.function == "ratio" else ():
            if (other := getattr(measure, key)) not in divisible:
                listed = ", ".join(sorted(divisible)) or "none is declared"
                yield (*place, key), f"must be a count or sum of this table ({listed}), is {shown(other)}"
        if measure.function == "histogram" and not measure.bounds:
            yield (*place, "bounds"), "must have at least one number"
        if any(low >= high for low, high in pairwise(measure.bounds)):
            yield (*place, "bounds"), f"must ascend, are {', '.join(f'{each:g}' for each in measure.bounds)}"
