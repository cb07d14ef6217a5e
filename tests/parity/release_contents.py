"""A release's published rows without what depends on delivery: coordinates, batches, revisions, sketches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import polars as pl
from polars.testing import assert_frame_equal
from small_release import SmallRelease

COORDINATES = ["_partition", "_offset"]
ORDER = ["_batch_id", "_partition", "_offset"]


@dataclass(frozen=True)
class ReleaseContents:
    """Silver's business columns; per rejected payload disposition and reasons; each gold table's declared columns."""

    silver: pl.DataFrame
    rejected: pl.DataFrame
    gold: dict[str, pl.DataFrame]


def release_contents(release: SmallRelease) -> ReleaseContents:
    """Read the published tables of a release."""
    names = [f"gold.{target.gold.name}" for target in release.release.gold]
    return ReleaseContents(
        silver=_declared(release.silver()),
        rejected=rejected_payloads(release),
        gold={name: _declared(release.read(name)) for name in names},
    )


def assert_same_contents(found: ReleaseContents, expected: ReleaseContents) -> None:
    """Assert that both have the same rows in every table."""
    assert_frame_equal(found.silver, expected.silver)
    assert_frame_equal(found.rejected, expected.rejected)
    assert found.gold.keys() == expected.gold.keys()
    for name, rows in expected.gold.items():
        assert_frame_equal(found.gold[name], rows)


def rejected_payloads(release: SmallRelease) -> pl.DataFrame:
    """Return per rejected record its payload, disposition and reasons; a duplicate's winner is left out."""
    values = _bronze(release).select(*COORDINATES, "value")
    reasons = release.rejected().explode("reasons").unnest("reasons")
    rejected = reasons.with_columns(detail=pl.when(pl.col("disposition") != "duplicate").then("detail")).join(
        values, on=COORDINATES, how="left", validate="m:1"
    )
    columns = ["value", "disposition", "rule", "column", "detail", "contract_version"]
    return rejected.select(columns).sort(columns)


def payload_verdicts(release: SmallRelease) -> Counter[tuple[bytes | None, str]]:
    """Count the verdicts of payloads: `accepted`, `duplicate`, or the first reason of the rejection."""
    values = _bronze(release).select(*COORDINATES, "value")
    accepted = release.silver().select(*COORDINATES, rule=pl.lit("accepted"))
    rules = release.rejected().select(*COORDINATES, rule=pl.col("reasons").list.first().struct.field("rule"))
    verdicts = pl.concat([accepted, rules]).join(values, on=COORDINATES, how="left", validate="1:1")
    return Counter(verdicts.select("value", "rule").rows())


def assert_accounted(release: SmallRelease) -> None:
    """Assert that each record is once in silver or rejected, and each identity once in silver.

    Each duplicate comes after its winner in the total order, and its reason names the winner's coordinates.
    """
    silver, rejected = release.silver(), release.rejected()
    found = pl.concat([silver.select(ORDER), rejected.select(ORDER)]).sort(ORDER)
    assert_frame_equal(found, _bronze(release).select(ORDER).sort(ORDER), check_dtypes=False)
    assert silver["event_id"].is_unique().all()
    duplicates = rejected.filter(pl.col("disposition") == "duplicate").with_columns(
        winner=pl.col("reasons").list.first().struct.field("detail")
    )
    winners = silver.select(winner=pl.concat_str(ORDER, separator="/"), **{f"w{c}": c for c in ORDER})
    pairs = duplicates.join(winners, on="winner", how="left", validate="m:1")
    assert pairs["w_offset"].null_count() == 0, "a duplicate's winner is not in silver"
    misplaced = [row for row in pairs.iter_rows(named=True) if _order(row, "w") >= _order(row, "")]
    assert not misplaced, f"a duplicate comes before its winner: {misplaced[:3]}"


def _order(row: dict[str, int], prefix: str) -> tuple[int, ...]:
    return tuple(row[f"{prefix}{column}"] for column in ORDER)


def _bronze(release: SmallRelease) -> pl.DataFrame:
    rows = release.read(f"bronze.{release.dataset.name}")
    return rows.rename({"partition": "_partition", "offset": "_offset"})


def _declared(rows: pl.DataFrame) -> pl.DataFrame:
    columns = [name for name in rows.columns if not name.startswith("_")]
    return rows.select(columns).sort(columns)
