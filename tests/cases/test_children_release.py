"""A release that declares children beside one that does not: planned, compared, promoted, rolled back."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import joint_site
import pytest
from joint_site import CONTRACT, NOON, PIPELINE, JointSite
from pyspark.sql import SparkSession
from small_release import Record, SmallRelease

from include.change.stages import roll_back
from include.declare.dataset import released_dataset
from include.declare.dataset_checks import dataset_problems
from include.declare.derived_dataset import origin_datasets
from include.plans.journal import load_comparison
from include.read.publication import read_publication

PARTS = """      - name: parts
        logicalType: array
        items:
          logicalType: object
          required: true
          properties: [{name: part, logicalType: string, required: true}, {name: w, logicalType: integer}]
"""
CHILDREN = """children: {parts: {from: parts, identity: [part]}}
gold:
  part_weights: {kind: additive, over: parts, keys: [part], measures: {w: {sum: w}}}
"""
CHILD_TABLE = "silver.taps__parts"


@pytest.fixture
def site(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JointSite:
    site = joint_site.joint_site(spark, tmp_path, monkeypatch)
    site.declare_taps("select('*')")
    site.write("taps/contract.yaml", CONTRACT + PARTS)
    return site


def tap(number: int, *weights: int) -> Record:
    at = f"{NOON + timedelta(minutes=number):%Y-%m-%dT%H:%M:%SZ}"
    parts = [{"part": f"p{n}", "w": weight} for n, weight in enumerate(weights)]
    return Record(json.dumps({"id": f"t{number}", "station": "a", "at": at, "n": 1, "parts": parts}).encode())


def resumed(site: JointSite, stream: SmallRelease) -> SmallRelease:
    dataset = released_dataset(site.settings, "taps", read_publication(site.settings, "taps").release)
    return SmallRelease(site.spark, site.settings, dataset, stream.epoch, stream.ends, stream.batches)


def weights(site: JointSite) -> dict[str, Any]:
    return {row["part"]: row["w"] for row in site.rows("gold.part_weights")}


@pytest.mark.extended
def test_release_with_children_is_promoted_and_rolled_back(site: JointSite) -> None:
    stream = site.source()
    stream.take([tap(1, 1, 2), tap(2)])
    stream.take([tap(3, 4)])
    with_children = PIPELINE.replace("gold:\n", CHILDREN)
    site.write("taps/pipeline.yaml", with_children)
    planned = site.plan("taps")
    assert {change.table for change in planned.plan.changes} == {
        "silver and rejected",
        CHILD_TABLE,
        "gold.part_weights",
    }
    record = site.run(planned)
    compared = load_comparison(site.settings, record.plan.id)
    assert compared is not None
    assert {table.name: table.presence for table in compared.tables if table.name in (CHILD_TABLE, "silver.taps")} == {
        "silver.taps": "both",
        CHILD_TABLE: "added",
    }
    assert [(row["id"], row["part"], row["w"]) for row in site.rows(CHILD_TABLE)] == [
        ("t1", "p0", 1),
        ("t1", "p1", 2),
        ("t3", "p0", 4),
    ]
    stream = resumed(site, stream)
    stream.take([tap(4, 8, 16, 32)])
    assert weights(site) == {"p0": 13, "p1": 18, "p2": 32}

    site.write("taps/pipeline.yaml", with_children.replace("sum: w", "max: w"))
    second = site.run(site.plan("taps"))
    compared = load_comparison(site.settings, second.plan.id)
    assert compared is not None
    assert {table.name: table.changed for table in compared.tables if table.name == CHILD_TABLE} == {CHILD_TABLE: 0}
    assert weights(site) == {"p0": 8, "p1": 16, "p2": 32}
    roll_back(site.settings, second, "ann")
    assert weights(site) == {"p0": 13, "p1": 18, "p2": 32}


HOURS = """sources: {parts: silver.taps__parts}
gold:
  taps_hours:
    query: gold/taps_hours.sql
    grain: [part]
    touched_by:
      parts: {part: part}
"""


def test_derived_dataset_follows_children(site: JointSite) -> None:
    site.write("taps/pipeline.yaml", PIPELINE.replace("gold:\n", CHILDREN))
    site.write("taps_hours/derived.yaml", HOURS)
    site.write("taps_hours/gold/taps_hours.sql", "select part, count(*) as n, sum(w) as w from parts group by part\n")
    assert dataset_problems(site.settings, "taps_hours") == []
    assert origin_datasets(site.settings, "taps_hours") == ["taps"]
    stream = site.source()
    for records in ([tap(1, 1, 2), tap(2)], [tap(3, 4)]):
        stream.take(records)
        site.follow("taps_hours")
    assert site.rows("gold.taps_hours") == [{"n": 1, "part": "p1", "w": 2}, {"n": 2, "part": "p0", "w": 5}]
