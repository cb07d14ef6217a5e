"""Reference tables as each bronze batch is joined with them: in the versions that its commit names.

Reads: bronze's commits, the reference tables. Writes: nothing.
Guarantee: a batch is joined with the same rows in stream, batch and replay, regardless of later loads.
Does not: decide which version is current (ingest does, when it commits the batch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from pyspark.sql import DataFrame, SparkSession

from include.declare.dataset import Dataset
from include.declare.reference_tables import read_version
from include.ground.delta_log import Commit, commits_following, latest_version, read_commit
from include.ground.paths import bronze_path
from include.ground.settings import Settings

Frames = Mapping[str, DataFrame]
Versions = Mapping[str, int]


@dataclass(frozen=True)
class VersionRange:
    """Batches [first, last] that are joined with the same rows of each reference table."""

    first: int
    last: int
    frames: Frames


class ReferenceVersions:
    """The reference tables of a dataset, batch by batch; with `fixed` versions for all of them alike."""

    def __init__(
        self, spark: SparkSession, settings: Settings, dataset: Dataset, fixed: Versions | None = None
    ) -> None:
        self._spark, self._settings, self._dataset = spark, settings, dataset
        self._fixed = fixed
        self._frames: dict[tuple[str, int], DataFrame] = {}
        self._named: dict[int, Versions] = {}
        """By batch, what its commit names: of bronze's versions after `_down`, up to `_up`."""
        self._down = self._up = -1
        self._lowest: int | None = None

    def version_ranges(self, first: int, last: int) -> list[VersionRange]:
        """Return the batches [first, last] as ranges of equal versions, ascending."""
        if not self._dataset.pipeline.reference or self._fixed is not None:
            return [VersionRange(first, last, self.frames(self._fixed or {}))]
        self._learn(first)
        named = ((batch, self._versions_of(batch)) for batch in range(first, last + 1))
        return [
            VersionRange(batches[0], batches[-1], self.frames(dict(versions)))
            for versions, group in groupby(named, lambda pair: pair[1])
            if (batches := [batch for batch, _ in group])
        ]

    def frames(self, versions: Versions) -> Frames:
        """Return the tables in these versions, the first of those that are not named."""
        return {t.name: self._frame(t.name, versions.get(t.name, 0)) for t in self._dataset.pipeline.reference}

    def _versions_of(self, batch: int) -> tuple[tuple[str, int], ...]:
        """Return the version of each reference table for a batch; 0 for one that its commit does not name.

        Such a table is newer than the batch, or bronze has lost the commit.
        """
        named = self._named.get(batch, {})
        return tuple((table.name, named.get(table.name, 0)) for table in self._dataset.pipeline.reference)

    def _frame(self, name: str, version: int) -> DataFrame:
        if (name, version) not in self._frames:
            declared = next(table for table in self._dataset.pipeline.reference if table.name == name)
            rows = read_version(self._settings, self._dataset.name, declared, version)
            self._frames[name, version] = self._spark.createDataFrame(rows)
        return self._frames[name, version]

    def _learn(self, first: int) -> None:
        """Read bronze's log on to its head, and back to batch `first`; what was read is not read again."""
        bronze = bronze_path(self._settings, self._dataset.name)
        if self._up < 0:
            self._down = self._up = latest_version(bronze)
        for commit in commits_following(bronze, self._up):
            self._note(commit)
            self._up = commit.version
        while self._down >= 0 and (self._lowest is None or self._lowest > first):
            self._note(read_commit(bronze, self._down))
            self._down -= 1

    def _note(self, commit: Commit) -> None:
        if commit.metadata and "offsets" in commit.metadata:
            batch = int(commit.metadata["batches"][0])
            self._named[batch] = commit.metadata.get("reference", {})
            self._lowest = batch if self._lowest is None else min(self._lowest, batch)
