"""The golden cases of the contract have the same outcome in the stream, in one batch and in a replay."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import small_release as small_release_module
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher
from small_release import Record, SmallRelease, small_release
from test_contract_of_flights import ACCEPTED, REJECTED

from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.settings import Settings

WHOLE_HISTORY = Slice([Span(0, 0, 10_000, BRONZE), Span(1, 0, 10_000, BRONZE)])
RECORDS = [Record(value) for value in ACCEPTED.values()] + [Record(value) for value, _ in REJECTED.values()]
# The golden cases are validated as of this time; at a later one, times in the near future would pass.
ARRIVED = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
Outcome = dict[tuple[int, int], list[tuple[str, str]]]


@pytest.fixture(autouse=True)
def _arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_release_module, "ARRIVED", ARRIVED)


def outcome(release: SmallRelease) -> Outcome:
    """Return each record's rejection reasons by coordinates; none for records in silver."""
    found: Outcome = {coordinates: [] for coordinates in release.silver().select("_partition", "_offset").rows()}
    for row in release.rejected().to_dicts():
        found[row["_partition"], row["_offset"]] = [(r["rule"], r["column"]) for r in row["reasons"]]
    assert len(found) == len(RECORDS)
    return found


def test_stream_batch_and_replay_agree_with_the_golden_cases(spark: SparkSession, tmp_path: Path) -> None:
    stream = small_release(spark, Settings(state=tmp_path / "stream"), "flights")
    third = len(RECORDS) // 3
    for records in (RECORDS[:third], RECORDS[third : 2 * third], RECORDS[2 * third :]):
        stream.take(records)
    batch = small_release(spark, Settings(state=tmp_path / "batch"), "flights")
    batch.ingest(RECORDS)
    batch.refine(0, 0)
    found = outcome(stream)
    expected = {name: reasons for name, (_, reasons) in REJECTED.items()}
    by_case = dict(
        zip([*ACCEPTED, *REJECTED], (found[0, offset] for offset in sorted(o for _, o in found)), strict=True)
    )
    for name, reasons in expected.items():
        assert sorted(by_case[name]) == sorted(reasons), name
    # All valid cases are one event: the first of an identity is accepted, the others are duplicates.
    assert {tuple(rule for rule, _ in by_case[name]) for name in ACCEPTED} <= {(), ("duplicate",)}
    assert outcome(batch) == found
    assert set(SlicePatcher(stream, tmp_path).rebuild(WHOLE_HISTORY)[2].values()) == {0}
