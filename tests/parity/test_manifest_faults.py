"""40,000 records with the faults of a manifest: validation finds every fault with its reason, and no other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from deliveries import days_of, deliveries, parity_seed
from pyspark.sql import SparkSession
from small_release import small_release

from include.ground.settings import Settings
from include.producers.faults import Shares

RECORDS = 40_000
DAYS = [f"2013-03-{day:02}" for day in range(1, 22)]
SHARES = Shares(duplicates=0.01, late=0.01, corrupt=0.02)


@pytest.mark.timeout(600)
def test_every_kind_of_fault_has_precision_and_recall_1(spark: SparkSession, tmp_path: Path) -> None:
    sent = deliveries("flights", days_of(*DAYS), SHARES, parity_seed())[:RECORDS]
    assert len(sent) == RECORDS
    release = small_release(spark, Settings(state=tmp_path), "flights")
    ends, expected = dict(release.ends), {}
    for item in sent:
        expected[item.record.partition, ends[item.record.partition]] = item.verdict
        ends[item.record.partition] += 1
    release.take([item.record for item in sent])

    found = dict.fromkeys(release.silver().select("_partition", "_offset").rows(), "accepted")
    for row in release.rejected().to_dicts():
        coordinates = (row["_partition"], row["_offset"])
        rules = [reason["rule"] for reason in row["reasons"]]
        found[coordinates] = expected[coordinates] if expected[coordinates] in rules else rules[0]
    kinds = {kind for kind in expected.values() if kind not in ("accepted", "duplicate")}
    assert len(kinds) >= 20, "the manifest must have many kinds of fault"
    hits = Counter(kind for coordinates, kind in expected.items() if found[coordinates] == kind)
    for kind in sorted({*expected.values(), *found.values()}):
        precision = hits[kind] / max(1, sum(1 for each in found.values() if each == kind))
        recall = hits[kind] / max(1, sum(1 for each in expected.values() if each == kind))
        assert (precision, recall) == (1.0, 1.0), kind
