"""Scores rejected records against a manifest: found, missed, wrong reason, wrongly rejected."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from include.ground.record_coordinates import RECORD
from include.producers.fault_manifest import Line, read_manifest

EXPECTED_SCHEMA = {
    "fault": pl.String,
    "kind": pl.String,
    "reason": pl.String,
    "_topic": pl.String,
    "_partition": pl.Int64,
    "_offset": pl.Int64,
}
RESENT_SCHEMA = {"_topic": pl.String, "_partition": pl.Int64, "start": pl.Int64, "end": pl.Int64}


@dataclass(frozen=True)
class KindScore:
    """Records of one kind of fault: injected (`expected`), rejected, missed, and rejected for another reason only."""

    fault: str
    kind: str
    reason: str
    expected: int
    found: int
    missed: int
    wrong_reason: int


@dataclass(frozen=True)
class Score:
    """Rejected records compared with the manifest.

    `wrongly_rejected`: valid records that were rejected. `excused`: rejected within a chunk that was sent twice after a
    crash. `examples`: positions (topic, partition, offset) of the first missed, wrongly classified and wrongly rejected
    records.
    """

    kinds: tuple[KindScore, ...]
    expected: int
    found: int
    missed: int
    wrong_reason: int
    wrongly_rejected: int
    excused: int
    examples: tuple[tuple[str, int, int], ...]

    @property
    def perfect(self) -> bool:
        """Whether all faults were rejected for their reasons, and nothing else."""
        return not (self.missed or self.wrong_reason or self.wrongly_rejected)


def score(manifest: Path, rejected: pl.DataFrame) -> Score:
    """Return how rejected records match a manifest, by (topic, partition, offset).

    `rejected` has `_topic, _partition, _offset, disposition` and `reasons` (a list of rule names, or of structs with
    `rule` as in the table); only its records of the manifest's topic count. Duplicates have disposition
    `duplicate`, or a rule of that name.
    """
    lines = list(read_manifest(manifest))
    expected = _expected(lines)
    topics = {line["run"]["topic"] for line in lines if line["fault"] == "run"}
    found = _rejected_rules(rejected.filter(pl.col("_topic").is_in(sorted(topics))))
    matched = expected.join(found, on=RECORD, how="left").with_columns(
        found=pl.col("rules").is_not_null(),
        right=pl.col("rules").list.contains(pl.col("reason")).fill_null(value=False),
    )
    surplus = found.join(expected, on=RECORD, how="anti")
    excused = _in_resent_ranges(surplus, lines)
    wrong = surplus.join(excused, on=RECORD, how="anti")
    kinds = _by_kind(matched)
    totals = Counter[str]()
    for kind in kinds:
        totals.update({"expected": kind.expected, "found": kind.found, "wrong": kind.wrong_reason})
    return Score(
        kinds=kinds,
        expected=totals["expected"],
        found=totals["found"],
        missed=totals["expected"] - totals["found"],
        wrong_reason=totals["wrong"],
        wrongly_rejected=wrong.height,
        excused=excused.height,
        examples=_examples(matched.filter(~pl.col("right")), wrong),
    )


def _expected(lines: list[Line]) -> pl.DataFrame:
    rows = [
        (line["fault"], line["kind"], line["reason"], line["topic"], line["partition"], line["offset"])
        for line in lines
        if line.get("reason")
    ]
    return pl.DataFrame(rows, schema=EXPECTED_SCHEMA, orient="row")


def _rejected_rules(rejected: pl.DataFrame) -> pl.DataFrame:
    reasons = pl.col("reasons")
    if isinstance(rejected.schema["reasons"], pl.List) and isinstance(rejected.schema["reasons"].inner, pl.Struct):
        reasons = reasons.list.eval(pl.element().struct.field("rule"))
    duplicate = pl.when(pl.col("disposition") == "duplicate").then(["duplicate"]).otherwise([])
    return rejected.select(
        pl.col("_topic"),
        pl.col("_partition").cast(pl.Int64),
        pl.col("_offset").cast(pl.Int64),
        rules=pl.concat_list(reasons.fill_null([]), duplicate),
    )


def _in_resent_ranges(surplus: pl.DataFrame, lines: list[Line]) -> pl.DataFrame:
    """Return the records in offset ranges that were sent twice."""
    ranges = [
        (line["topic"], line["partition"], line["offset"], line["end"]) for line in lines if line["fault"] == "resent"
    ]
    resent = pl.DataFrame(ranges, schema=RESENT_SCHEMA, orient="row")
    within = (pl.col("_offset") >= pl.col("start")) & (pl.col("_offset") < pl.col("end"))
    return surplus.join(resent, on=["_topic", "_partition"]).filter(within).unique(RECORD)


def _by_kind(matched: pl.DataFrame) -> tuple[KindScore, ...]:
    table = (
        matched.group_by("fault", "kind", "reason")
        .agg(
            expected=pl.len(),
            found=pl.col("found").sum(),
            wrong_reason=(pl.col("found") & ~pl.col("right")).sum(),
        )
        .sort("fault", "reason", "kind")
    )
    return tuple(
        KindScore(fault, kind, reason, expected, found, expected - found, wrong)
        for fault, kind, reason, expected, found, wrong in table.rows()
    )


def _examples(*frames: pl.DataFrame) -> tuple[tuple[str, int, int], ...]:
    positions = pl.concat([frame.select(RECORD) for frame in frames]).head(10)
    return tuple((topic, partition, offset) for topic, partition, offset in positions.rows())
