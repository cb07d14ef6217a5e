"""Decisions about records: a fixed payload replaces the record's own, a discarded record stays rejected.

Reads: the dataset's decisions. Writes: nothing. Does not: touch bronze, where the record stays unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.ground.paths import decision_log_path
from include.ground.settings import Settings
from include.read.decision_log import DecidedRecord, DecisionLogReader, Position, decision_log_size
from spark_jobs.contract.payload_texts import UNREAD
from spark_jobs.contract.validator import REASONS, Validator

SCHEMA = "partition int, offset long, fixed binary, discarded boolean"
DISCARDED = "array(named_struct('rule', 'discarded', 'column', '', 'detail', cast(null as string)))"


@dataclass
class RecordDecisions:
    """The decisions about a dataset's records. A run reads only those since the last run."""

    settings: Settings
    dataset: str

    def __post_init__(self) -> None:
        self._reader = DecisionLogReader(decision_log_path(self.settings, self.dataset))

    def until(self) -> int:
        """The current length of the list of decisions."""
        return decision_log_size(self.settings, self.dataset)

    def for_batches(self, batches: tuple[int, int], until: int) -> dict[Position, DecidedRecord]:
        """Return the decisions about records of these batches within the first `until` bytes of the list."""
        self._reader.advance(until)
        return self._reader.of_batches(*batches)


def validate_with_decisions(
    validator: Validator, records: DataFrame, decisions: Mapping[Position, DecidedRecord]
) -> DataFrame:
    """Validate records as `Validator.validated` does, with the decisions about them; a fix is a JSON text."""
    if not decisions:
        return validator.validated(records)
    rows = [(*position, one.payload, one.is_discarded) for position, one in decisions.items()]
    known = F.broadcast(records.sparkSession.createDataFrame(rows, SCHEMA))
    both = records.join(known, ["partition", "offset"], "left")
    fixed = both.withColumn("value", F.coalesce("fixed", "value"))
    if UNREAD in records.columns:
        fixed = fixed.withColumn(UNREAD, F.when(F.col("fixed").isNull(), F.col(UNREAD)))
    fixed = fixed.select(*records.columns)
    validated = validator.validated(fixed)
    out = known.where("discarded").selectExpr("partition as _partition", "offset as _offset", "discarded")
    marked = validated.join(F.broadcast(out), ["_partition", "_offset"], "left")
    reasons = F.when(F.col("discarded") & (F.size("_reasons") == 0), F.expr(DISCARDED).cast(REASONS))
    return marked.withColumn("_reasons", reasons.otherwise(F.col("_reasons"))).select(*validated.columns)


def without_decisions(records: DataFrame, decisions: Mapping[Position, DecidedRecord]) -> DataFrame:
    """Return the records (columns of bronze) about which nothing is decided."""
    if not decisions:
        return records
    positions = records.sparkSession.createDataFrame(list(decisions), "partition int, offset long")
    return records.join(F.broadcast(positions), ["partition", "offset"], "left_anti").select(*records.columns)
