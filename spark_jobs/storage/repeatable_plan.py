"""Which physical plans of Spark may be executed again over other rows (layers/adr-0013).

Some operators keep what they computed: an exchange its shuffle files or its broadcast rows, a subquery its value. When
their plan is executed again, they return the rows of the first execution. So only operators that are known to read
their input again may stand above a scan.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def is_repeatable(query: DataFrame) -> bool:
    """Whether another execution of a frame's physical plan reads its files again, and no operator returns kept rows."""
    plan = query._jdf.queryExecution().executedPlan()
    return plan.subqueriesAll().size() == 0 and _is_repeatable(plan)


def _is_repeatable(node: Any) -> bool:
    if _is_constant(node):
        return True
    return _name(node) in STATELESS and all(_is_repeatable(child) for child in _children(node))


def _is_constant(node: Any) -> bool:
    children = list(_children(node))
    return all(_is_constant(child) for child in children) if children else _name(node) in CONSTANTS


def _children(node: Any) -> Iterator[Any]:
    if _name(node) == "ReusedExchangeExec":
        yield node.child()
        return
    children = node.children()
    for number in range(children.size()):
        yield children.apply(number)


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName())
