"""Measures of additive gold do not depend on batches or their order, and equal plain Python over all rows."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from declared_gold import audited, meter_release, reading
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher
from small_release import SmallRelease

from include.declare.gold import AdditiveGold
from include.declare.history_slice import BRONZE, Slice, Span
from include.declare.measures import QUANTILE_ERROR, Measure
from spark_jobs.layers.gold_rows import AdditiveGoldRows

MEASURES = (
    Measure("first_kind", "first", "kind", by="at"),
    Measure("last_kind", "last", "kind", by="at"),
    Measure("kind_of_least", "min_by", "kind", by="amount"),
    Measure("kind_of_most", "max_by", "kind", by="amount"),
    Measure("kinds", "count_distinct", "kind"),
    Measure("top_kinds", "top_k", "kind", k=2),
    Measure("heaviest_kinds", "top_k", "kind", k=2, weight="nullif(at, 3) - 15"),
    Measure("median", "approx_quantile", "amount", at=0.5),
    Measure("p95", "approx_quantile", "amount", at=0.95),
    Measure("bins", "histogram", "amount", bounds=(-10.0, 0.0, 50.0)),
    Measure("rows", "count", "*"),
    Measure("large", "count_if", "amount > 50"),
    Measure("share", "ratio", of="large", to="rows"),
)
GOLD = AdditiveGold("g", "", None, ("arrival", "shop"), MEASURES)
ARRIVALS, BATCHES = 10, 4


@dataclass(frozen=True)
class Event:
    shop: str
    kind: str | None
    amount: float | None
    at: int
    _partition: int
    _offset: int


def events() -> list[Event]:
    numbers = random.Random(5)
    found = []
    for n in range(300):
        kind = numbers.choice([None, "a", "b", "b", "c", "c"])
        amount = numbers.choice([None, 0.0, numbers.uniform(-100, 100), numbers.lognormvariate(3, 2)])
        # Few times for many rows: partition and offset decide between equal ones.
        found.append(Event(numbers.choice("xy"), kind, amount, numbers.randrange(40), n % 2, n // 2))
    return [*found, Event("nothing", None, None, 1, 0, 900)]


def by_python(rows: list[Event]) -> dict[str, Any]:
    """Return the exact values over the rows of one shop; quantiles by rank."""
    kinds = Counter(row.kind for row in rows if row.kind is not None)
    weights = Counter[str]()
    for row in rows:
        if row.kind is not None and row.at != 3:
            weights[row.kind] += row.at - 15
    amounts = sorted(row.amount for row in rows if row.amount is not None)
    timed = sorted(rows, key=lambda row: (row.at, row._partition, row._offset))
    known = [(row.amount, row._partition, row._offset, row.kind) for row in rows if row.amount is not None]
    valued = sorted(known, key=lambda each: each[:3])
    ranked = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))[:2]
    edges = [-math.inf, -10.0, 0.0, 50.0, math.inf]
    large = sum(amount > 50 for amount in amounts)
    return {
        "first_kind": timed[0].kind,
        "last_kind": timed[-1].kind,
        "kind_of_least": valued[0][3] if valued else None,
        "kind_of_most": valued[-1][3] if valued else None,
        "kinds": len(kinds),
        "heaviest_kinds": sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:2],
        "top_kinds": [(kind, count) for kind, count in ranked],
        "median": amounts[math.ceil(0.5 * len(amounts)) - 1] if amounts else None,
        "p95": amounts[math.ceil(0.95 * len(amounts)) - 1] if amounts else None,
        "bins": [sum(low <= amount < high for amount in amounts) for low, high in zip(edges, edges[1:], strict=False)],
        "rows": len(rows),
        "large": large,
        "share": large / len(rows),
    }


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> dict[tuple[int, str], dict[str, Any]]:
    """Return the rows of gold by arrival and shop: an arrival is an order and batches."""
    numbers, rows = random.Random(6), []
    for arrival in range(ARRIVALS):
        shuffled = events()
        numbers.shuffle(shuffled)
        rows += [(arrival, numbers.randrange(BATCHES), *vars(event).values()) for event in shuffled]
    types = "arrival int, batch int, shop string, kind string, amount double, at int, _partition int, _offset long"
    silver = spark.createDataFrame(rows, types).coalesce(1)
    parts = [AdditiveGoldRows(GOLD).computed(silver.where(f"batch = {batch}"), batch) for batch in range(BATCHES)]
    merged = reduce(lambda old, new: AdditiveGoldRows(GOLD).added(old, new), parts)
    return {(row.arrival, row.shop): row.asDict(recursive=False) for row in merged.collect()}


@pytest.mark.parametrize("shop", ["x", "y", "nothing"])
def test_measures_equal_those_of_plain_python(found: dict[tuple[int, str], dict[str, Any]], shop: str) -> None:
    row, expected = dict(found[0, shop]), by_python([event for event in events() if event.shop == shop])
    for name in ("top_kinds", "heaviest_kinds"):
        row[name] = [tuple(each) for each in row[name]]
    for name in ("median", "p95"):
        exact = expected.pop(name)
        assert row[name] == (None if exact is None else pytest.approx(exact, rel=QUANTILE_ERROR))
    assert {name: row[name] for name in expected} == expected


def test_ten_arrivals_give_equal_values_and_states(found: dict[tuple[int, str], dict[str, Any]]) -> None:
    for shop in ("x", "y", "nothing"):
        rows = [{**found[arrival, shop], "arrival": 0} for arrival in range(ARRIVALS)]
        provenance = ("_first_batch", "_last_batch", "_revision")
        assert len({repr({k: v for k, v in row.items() if k not in provenance}) for row in rows}) == 1


GOLD_YAML = """
  meter_days:
    kind: additive
    window: {column: read_at, size: 1 day, as: day}
    measures:
      opened: {first: device}
      closed: {last: device}
      driest: {min_by: {value: device, by: litres}}
      wettest: {max_by: {value: device, by: litres}}
      devices: {count_distinct: device}
      busiest: {top_k: {value: device, k: 2}}
      largest: {top_k: {value: device, k: 2, weight: litres}}
      median: {approx_quantile: {value: litres, at: 0.5}}
      sizes: {histogram: {value: litres, bounds: [5, 50]}}
      readings: {count: "*"}
      large: {count_if: litres > 50}
      share: {ratio: {of: large, to: readings}}
"""
WHOLE_HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])


@pytest.fixture(scope="module")
def release(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallRelease:
    release = meter_release(spark, tmp_path_factory.mktemp("measures"), GOLD_YAML)
    release.cut_gold()
    release.take([reading("d1", 10, 60), reading("d2", 20, 7), reading("d2", 30, 1)])
    release.take([reading("d3", 5, 70), reading("d3", 40, 0), reading("d2", 15, 7)])
    return release


@pytest.mark.extended
def test_late_reading_changes_every_measure(release: SmallRelease) -> None:
    (row,) = release.read("gold.meter_days").to_dicts()
    assert (row["opened"], row["closed"], row["driest"], row["wettest"]) == ("d3", "d3", "d3", "d3")
    assert (row["devices"], row["readings"], row["share"]) == (3, 6, 2 / 6)
    assert row["busiest"] == [{"value": "d2", "count": 3}, {"value": "d3", "count": 2}]
    assert row["largest"] == [{"value": "d3", "weight": 70}, {"value": "d1", "weight": 60}]
    assert row["sizes"] == [2, 2, 2]
    assert row["median"] == pytest.approx(7, rel=QUANTILE_ERROR)


@pytest.mark.extended
def test_audit_and_rebuild_agree_with_the_stream(release: SmallRelease, tmp_path: Path) -> None:
    assert audited(release, "meter_days") == []
    _, _, differing = SlicePatcher(release, tmp_path).rebuild(WHOLE_HISTORY)
    assert not any(differing.values())
