"""Sums of columns of 64 bits are refused where two records could exceed them: they would halt the stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.declare.dataset_checks import dataset_problems
from include.ground.settings import Settings

CONTRACT = """
apiVersion: v3.1.0
kind: DataContract
id: meters
name: meters
version: 1.0.0
status: active
schema:
  - name: meters
    physicalType: topic
    logicalType: object
    properties:
      - {name: id, logicalType: string, required: true, primaryKey: true}
      - {name: at, logicalType: timestamp, required: true}
      - {name: n, logicalType: integer}
      - {name: big, logicalType: integer, physicalType: bigint}
      - name: bounded
        logicalType: integer
        physicalType: bigint
        logicalTypeOptions: {minimum: 0, maximum: 1000000000000}
"""
PIPELINE = """
topic: meters
event_time: at
lateness: 1 day
identity: {columns: [id], horizon: 1 day}
gold:
  days:
    kind: additive
    window: {column: at, size: 1 day, as: day}
    measures: {total: MEASURE}
  hours:
    kind: query
    query: gold/hours.sql
    window: {column: at, size: 1 hour, as: hour}
"""
SILVER = "def silver(accepted):\n    return accepted\n"


def problems(settings: Settings, tmp_path: Path, measure: str, summed: str = "n") -> list[str]:
    """Return why the dataset is refused, without file and line."""
    folder = tmp_path / "datasets" / "meters"
    (folder / "gold").mkdir(parents=True)
    (folder / "contract.yaml").write_text(CONTRACT)
    (folder / "pipeline.yaml").write_text(PIPELINE.replace("MEASURE", measure))
    (folder / "silver.py").write_text(SILVER)
    (folder / "gold" / "hours.sql").write_text(f"select hour, sum({summed}) as total from silver group by 1\n")
    chosen = settings.model_copy(update={"datasets": folder.parent})
    return [f"{problem.key}: {problem.why}" for problem in dataset_problems(chosen, "meters")]


@pytest.mark.parametrize(
    ("measure", "place"),
    [
        ("{sum: big}", "gold.days.measures.total.sum"),
        ("{avg: big + 1}", "gold.days.measures.total.avg"),
        ("{top_k: {value: id, k: 3, weight: big}}", "gold.days.measures.total.top_k"),
    ],
)
def test_sum_that_two_records_can_exceed_is_refused(
    settings: Settings, tmp_path: Path, measure: str, place: str
) -> None:
    (problem,) = problems(settings, tmp_path, measure)
    assert problem.startswith(f"{place}: big has 64 bits")
    assert "write cast(big as decimal(38,0))" in problem


def test_query_that_sums_such_a_column_is_refused(settings: Settings, tmp_path: Path) -> None:
    (problem,) = problems(settings, tmp_path, "{sum: n}", "big")
    assert problem.startswith("gold.hours.query: big has 64 bits")


@pytest.mark.parametrize(
    "measure", ["{sum: n}", "{sum: bounded}", "{max: big}", "{sum: 'cast(big as decimal(38,0))'}", '{count: "*"}']
)
def test_other_measures_are_accepted(settings: Settings, tmp_path: Path, measure: str) -> None:
    assert problems(settings, tmp_path, measure, "bounded") == []
