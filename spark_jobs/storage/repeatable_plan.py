"""Decides which physical plans of Spark may be executed again over other rows (layers/adr-0013).

Some operators keep what they computed: an exchange its shuffle files or its broadcast rows, a subquery its value. When
their plan is executed again, they return the rows of the first execution. So only operators that are known to read
their input again may stand above a scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Any

from pyspark.sql import DataFrame

SCAN = "FileSourceScanExec"
CONSTANTS = frozenset({"LocalTableScanExec", "RDDScanExec", "RangeExec", "OneRowRelationExec"})
"""Leaves with the same rows in each execution, such as a reference table's."""
STATELESS = frozenset(
    {
        *(SCAN, "ColumnarToRowExec", "InputAdapter", "WholeStageCodegenExec", "CoalesceExec"),
        *("ProjectExec", "FilterExec", "GenerateExec", "ExpandExec", "UnionExec", "CollectMetricsExec"),
        *("BatchEvalPythonExec", "ArrowEvalPythonExec", "BroadcastHashJoinExec", "BroadcastNestedLoopJoinExec"),
        *("SortExec", "WindowExec", "WindowGroupLimitExec"),
        *("HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec"),
    }
)
"""Operators that keep nothing of their input."""


class Rows(Enum):
    """What an operator returns when its plan is executed again."""

    CONSTANT = auto()
    """The same rows, whatever the files have."""
    FRESH = auto()
    """The rows of the files as they are."""
    KEPT = auto()
    """Perhaps the rows of the first execution."""


def is_repeatable(query: DataFrame) -> bool:
    """Whether another execution of a frame's physical plan reads its files again, and no operator returns kept rows."""
    plan = query._jdf.queryExecution().executedPlan()
    return plan.subqueriesAll().size() == 0 and _rows(plan) is not Rows.KEPT


def _rows(node: Any) -> Rows:
    """Return what an operator returns. Each is visited once: a visit is several calls into the JVM."""
    name = _name(node)
    below = [_rows(child) for child in _children(node, name)]
    if all(rows is Rows.CONSTANT for rows in below) and (below or name in CONSTANTS):
        return Rows.CONSTANT
    return Rows.FRESH if name in STATELESS and Rows.KEPT not in below else Rows.KEPT


def _children(node: Any, name: str) -> Iterator[Any]:
    if name == "ReusedExchangeExec":
        yield node.child()
        return
    children = node.children()
    for number in range(children.size()):
        yield children.apply(number)


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName())
