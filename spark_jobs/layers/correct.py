"""A correction: the rows in which a slice differs, put in the place of what is there, by the tables' owner (DESIGN §6).

Reads: the plan's folder (slices.py), the release's tables at their head.
Writes: silver, rejected, each gold table that is concerned: one commit each, idempotent by the plan's app id.
Guarantee: only rows that are still as they were compared are replaced, else nothing is; gold follows from silver.
After a crash: called again with the same arguments, it commits what is missing.
Does not: publish, or remove anything from bronze: what bronze lacked is filled in first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.errors import Terminal
from spark_jobs.failpoints import Step, pass_step
from spark_jobs.layers.bronze import fill_gaps
from spark_jobs.layers.gold import GoldTable
from spark_jobs.layers.grains import corrected_rows, grains_schema, touched_grains
from spark_jobs.layers.release import Release
from spark_jobs.layers.silver import MONTH
from spark_jobs.layers.slices import PLACE, Folder, keep, read
from spark_jobs.tables import DataFile, Table, bounds_of

APPLY, UNDO = 1, 2


class MovedOn(Terminal):
    """The rows that were compared are not the rows that are there now."""

    def __init__(self, table: str, plan: str, why: str) -> None:
        super().__init__(
            f"{table}: {why} since plan {plan} was compared; nothing was changed", f"headrace plan compare {plan}"
        )
        self.table, self.plan = table, plan


@dataclass(frozen=True)
class Correction:
    """A plan's folder, compared at batch `built`; `way` is APPLY or UNDO, which takes the same rows back."""

    plan: str
    folder: Folder
    built: int
    way: int

    def rows(self, spark: SparkSession, table: Table, taken: bool) -> DataFrame:
        """Return the rows that are taken from a table, or put into it."""
        state = "removed" if taken == (self.way == APPLY) else "added"
        return read(spark, self.folder.rows(state, table.spec.name), table.spec.data_schema)

    def files(self, table: Table) -> list[Path]:
        """The files of both."""
        return [
            p
            for state in ("removed", "added")
            for p in sorted(self.folder.rows(state, table.spec.name).glob("*.parquet"))
        ]

    def fill(self, spark: SparkSession, bronze: Table) -> DataFrame:
        """Return the records that bronze lacks."""
        return read(spark, self.folder.rows("added", bronze.spec.name), bronze.spec.data_schema)

    def app_id(self, release: Release) -> str:
        """The app id of the plan's commits."""
        return f"{release.dataset.name}/{release.dataset.release}/plan/{self.plan}"


def apply_correction(release: Release, correction: Correction, batch: int, epoch: int) -> None:
    """Correct a release's tables, all of them at `batch`; MovedOn changes nothing."""
    refinery, app_id = release.refinery, correction.app_id(release)
    if not is_begun(release, correction):
        refuse_moved_on(release, correction, batch)
    facts = {"dataset": release.dataset.name, "release": release.dataset.release, "epoch": epoch, "batch": batch}
    facts |= {"plan": correction.plan, "way": correction.way, "app_id": app_id}
    if correction.way == APPLY:
        _fill(release, correction, facts)
    pass_step(Step.CORRECTION_BEGUN, batch)
    month = F.date_format(release.dataset.pipeline.event_time, "yyyy-MM")
    _replace(refinery.spark, refinery.silver, correction, month, facts)
    pass_step(Step.CORRECTED_SILVER, batch)
    _replace(refinery.spark, refinery.rejected, correction, F.date_format("first_seen", "yyyy-MM"), facts)
    pass_step(Step.CORRECTED_REJECTED, batch)
    for target in release.gold:
        _correct_gold(target, refinery.silver, correction, facts)
        pass_step(Step.CORRECTED_GOLD, batch)


def is_begun(release: Release, correction: Correction) -> bool:
    """Whether a commit of it was made, so that it must be finished."""
    app_id = correction.app_id(release)
    filled = correction.way == APPLY and release.refinery.bronze.committed(app_id) >= APPLY
    return filled or release.refinery.silver.committed(app_id) >= correction.way


def _fill(release: Release, correction: Correction, facts: dict[str, Any]) -> None:
    refinery = release.refinery
    missing = correction.fill(refinery.spark, refinery.bronze)
    if correction.folder.rows("added", refinery.bronze.spec.name).exists() and not missing.isEmpty():
        fill_gaps(refinery.bronze, missing, facts["app_id"], facts)


def refuse_moved_on(release: Release, correction: Correction, batch: int) -> None:
    """Raise MovedOn unless the rows to take are there, and no later batch has to do with them."""
    refinery, plan = release.refinery, correction.plan
    for table in (refinery.silver, refinery.rejected):
        taken = correction.rows(refinery.spark, table, taken=True)
        there = table.read(refinery.spark, _files_at(table, correction))
        if not taken.exceptAll(there).isEmpty():
            raise MovedOn(table.spec.name, plan, "rows have changed")
        places = correction.rows(refinery.spark, table, taken=False).select(*PLACE)
        fresh = places.join(taken.select(*PLACE), PLACE, "left_anti")
        if not there.join(fresh, PLACE, "left_semi").isEmpty():
            raise MovedOn(table.spec.name, plan, "records have come in")
    if batch > correction.built:
        _refuse_later_kin(release, correction)


def _refuse_later_kin(release: Release, correction: Correction) -> None:
    """A later record of an identity that the correction is about may win or lose by it."""
    refinery, identity = release.refinery, list(release.dataset.pipeline.identity)
    spark, silver, rejected = refinery.spark, refinery.silver, refinery.rejected
    taken, put = correction.rows(spark, silver, taken=True), correction.rows(spark, silver, taken=False)
    ours = taken.unionByName(put).select(*identity).distinct()
    if not _later(spark, silver, correction.built).join(ours, identity, "left_semi").isEmpty():
        raise MovedOn(silver.spec.name, correction.plan, "a later record has the same identity")
    won = taken.select(F.concat_ws("/", "_batch_id", *PLACE).alias("_winner")).distinct()
    lost = _later(spark, rejected, correction.built).withColumn("_winner", F.expr("get(reasons, 0).detail"))
    if not lost.where("disposition = 'duplicate'").join(won, "_winner", "left_semi").isEmpty():
        raise MovedOn(rejected.spec.name, correction.plan, "a later duplicate has lost to a record of it")


def _later(spark: SparkSession, table: Table, batch: int) -> DataFrame:
    files = [file for file in table.files() if file.overlaps("_batch_id", batch + 1, 2**62)]
    return table.read(spark, files).where(F.col("_batch_id") > batch)


def _files_at(table: Table, correction: Correction) -> list[DataFile]:
    """The table's files that may hold a record of the correction."""
    columns = (*PLACE, "_batch_id")
    spans = [bounds for path in correction.files(table) for bounds in bounds_of(path, columns)]
    return [
        file
        for file in table.files()
        if any(all(file.overlaps(c, low[c], high[c]) for c in columns if c in low) for low, high in spans)
    ]


def _replace(spark: SparkSession, table: Table, correction: Correction, month: Any, facts: dict[str, Any]) -> None:
    """Take rows from silver or rejected and put others in their place, in one commit."""
    if table.committed(facts["app_id"]) >= correction.way:
        return
    taken, put = (correction.rows(spark, table, taken=taken) for taken in (True, False))
    old = _files_at(table, correction)
    kept = table.read(spark, old).join(taken.select(*PLACE), PLACE, "left_anti")
    rows = kept.unionByName(put).withColumn(MONTH, month)
    added = table.write(rows, f"{correction.plan}-{correction.way}") if old or not put.isEmpty() else []
    counts = {"rows_removed": taken.count(), "rows_added": put.count()}
    _validate_rows(table, correction, old, added, counts)
    metadata = facts | {"table": table.spec.name, "total": _total(table, old, added)} | counts
    if "disposition" in table.spec.data_schema.fieldNames():
        metadata |= _changed_counts(taken, put)
    table.commit(facts["app_id"], correction.way, metadata, added, old)


def _validate_rows(
    table: Table, correction: Correction, old: Sequence[DataFile], added: Sequence[DataFile], counts: dict[str, int]
) -> None:
    wanted = sum(file.rows for file in old) - counts["rows_removed"] + counts["rows_added"]
    written = sum(file.rows for file in added)
    if written != wanted:
        raise MovedOn(
            table.spec.name,
            correction.plan,
            f"{written} rows were to be written instead of {wanted}: rows have changed",
        )


def _changed_counts(taken: DataFrame, put: DataFrame) -> dict[str, Any]:
    """Return by how much the rows of each disposition and of each reason become more."""
    change: dict[str, Counter[str]] = {"dispositions": Counter(), "reasons": Counter()}
    for rows, sign in ((taken, -1), (put, 1)):
        for name, count in rows.groupBy("disposition").count().toLocalIterator():
            change["dispositions"][name] += sign * count
        rules = rows.select(F.explode(F.array_distinct("reasons.rule")).alias("rule"))
        for name, count in rules.groupBy("rule").count().toLocalIterator():
            change["reasons"][name] += sign * count
    return {kind: {name: n for name, n in sorted(counted.items()) if n} for kind, counted in change.items()}


def _correct_gold(target: GoldTable, silver: Table, correction: Correction, facts: dict[str, Any]) -> None:
    table, gold, spark = target.table, target.gold, target.spark
    if table.committed(facts["app_id"]) >= correction.way:
        return
    moved = [correction.rows(spark, silver, taken=taken) for taken in (True, False)]
    compared = read(spark, correction.folder.rows("grains", table.spec.name), grains_schema(target))
    place = correction.folder.bench(f"grains-{correction.way}") / table.spec.name
    keep(touched_grains(gold, moved[0].unionByName(moved[1])).unionByName(compared).distinct(), place)
    grains, written = read(spark, place, grains_schema(target)), sorted(place.glob("*.parquet"))
    count = grains.count()
    if not count:
        return
    rows, old = corrected_rows(target, silver, grains, written, facts["batch"])
    added = table.write(rows.withColumn(MONTH, F.expr(gold.partition)), f"{correction.plan}-{correction.way}")
    metadata = facts | {"table": table.spec.name, "grains": count, "total": _total(table, old, added)}
    table.commit(facts["app_id"], correction.way, metadata, added, old)


def _total(table: Table, old: Sequence[DataFile], added: Sequence[DataFile]) -> int:
    return sum(f.rows for f in table.files()) - sum(f.rows for f in old) + sum(f.rows for f in added)
