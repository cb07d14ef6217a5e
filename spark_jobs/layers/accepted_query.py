"""Accepted records as rows of silver, with or without the inputs of gold: a prepared query, or one built for a run."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from pyspark.sql import DataFrame

from spark_jobs.contract.warning_counts import Counts
from spark_jobs.layers.reference_versions import Frames
from spark_jobs.layers.silver_tables import SilverTables, dated
from spark_jobs.tables.delta_table import validate_types
from spark_jobs.tables.prepared_query import PreparedQuery, QueryOfOneRun


class AcceptedQuery:
    """The rows of silver of `accepted` records, joined with `reference`; the dataset's silver.py is called once.

    `prepared`: the records are those of a slot.
    """

    def __init__(self, writer: SilverTables, reference: Frames, accepted: DataFrame, *, prepared: bool = False) -> None:
        self._writer = writer
        self._query_type = PreparedQuery if prepared else QueryOfOneRun
        self._watched = writer.counting.watched(accepted.drop("_reasons"))
        rows = dated(writer.transform(self._watched.rows, **reference), writer.dataset)
        self._rows = rows.select(*writer.silver.spec.schema.fieldNames())
        validate_types(writer.silver.spec, self._rows.schema)

    @cached_property
    def _without_inputs(self) -> PreparedQuery | QueryOfOneRun:
        return self._query_type(self._rows)

    @cached_property
    def _with_inputs(self) -> PreparedQuery | QueryOfOneRun:
        return self._query_type(self._writer.inputs.added(self._rows))

    def write(self, folder: Path, *, with_inputs: bool) -> Counts:
        """Add the rows to a folder; return the counts of the warning rules."""
        self._watched.begin()
        try:
            (self._with_inputs if with_inputs else self._without_inputs).save(folder)
        except BaseException:
            self._watched.abandon()
            raise
        return self._watched.counts()
