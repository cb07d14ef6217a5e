"""Runs the analyses of a workload over its published tables; graphs are compared with plain Python.

Reads: published tables. Writes: the tables of the analyses. What is learned has no oracle: its figures are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from include.change.analysis import run_analysis
from include.declare.analyses import Analysis, declared_analyses
from include.ground.settings import Settings
from include.read.published_tables import pinned
from workloads.graph_oracle import GRAPHS, departures
from workloads.oracle_rows import Row, differing_rows

CLOSE = 1e-8
"""Between two ranks that are computed by other numbers of iterations."""


@dataclass(frozen=True)
class AnalysisResult:
    """An analysis that ran: its algorithm, rows and figures, and how many rows differ from the oracle's; None: none."""

    name: str
    algorithm: str
    rows: int
    figures: Mapping[str, float]
    differing: int | None


def analysed(
    settings: Settings, dataset: str, records: Iterable[bytes], report: Callable[[str], object]
) -> list[AnalysisResult]:
    """Run all analyses of a dataset, whose topic has these records. Raises Terminal, Transient."""
    declared = declared_analyses(settings, dataset)
    if not declared:
        return []
    report(f"{dataset}: analyses {', '.join(declared)} …")
    known = list(records)
    return [_analysed(settings, each, known) for each in declared.values()]


def _analysed(settings: Settings, analysis: Analysis, records: Sequence[bytes]) -> AnalysisResult:
    done = run_analysis(settings, analysis, lambda _: None)
    rows = pinned(settings).read(f"analysis.{analysis.name}").collect().to_dicts()
    oracle = GRAPHS.get(analysis.name)
    differing = None if oracle is None else differing_results(oracle(departures(records)), rows)
    return AnalysisResult(analysis.name, analysis.declared.algorithm, len(rows), done.figures, differing)


def differing_results(expected: Sequence[Row], found: Sequence[Row]) -> int:
    """Return how many rows two results have not in common; ranks may differ in their last digits."""
    if not expected or "rank" not in expected[0]:
        return sum(map(len, differing_rows(expected, found)))
    ranks = {row["node"]: row["rank"] for row in found}
    wrong = [row for row in expected if not math.isclose(ranks.get(row["node"], -1), row["rank"], abs_tol=CLOSE)]
    return len(wrong) + len(set(ranks) - {row["node"] for row in expected})
