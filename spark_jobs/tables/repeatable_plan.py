"""Reads physical plans of Spark: which may be executed again over other rows, and what they scan (layers/adr-0013).

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
KNOWN_LEAVES = frozenset({SCAN, *CONSTANTS, "ReusedExchangeExec", "ReusedSubqueryExec"})
"""Leaves that read no column of a file, except a scan; what is reused is in the plan once more."""
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


def scanned_columns(query: DataFrame) -> frozenset[str] | None:
    """Return the names of the columns that the execution of a frame reads from files, also in its subqueries.

    None when that is unknown: adaptive execution hides its plan in a leaf.
    """
    plan = query._jdf.queryExecution().executedPlan()
    leaves = [leaf for each in (plan, *_all(plan.subqueriesAll())) for leaf in _all(each.collectLeaves())]
    if not all(_name(leaf) in KNOWN_LEAVES for leaf in leaves):
        return None
    scans = [leaf for leaf in leaves if _name(leaf) == SCAN]
    return frozenset(name for scan in scans for name in scan.requiredSchema().fieldNames())


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
    yield from _all(node.children())


def _all(sequence: Any) -> Iterator[Any]:
    for number in range(sequence.size()):
        yield sequence.apply(number)


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName())
