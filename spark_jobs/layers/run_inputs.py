"""What records are read with besides the contract: reference tables, writers' schemas, decisions about records.

Each is pinned for a run. A bronze batch is joined with the versions of reference tables that its commit names. The
lists of schemas and decisions only grow, so their first `until` bytes are what a run used; later runs need no registry.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.declare.dataset import Dataset
from include.declare.reference_tables import read_version
from include.declare.writer_schemas import HEADER_BYTES, WriterSchemas, keep_schemas, known_schemas, schemas_size
from include.ground.delta_log import Commit, commits_following, latest_version, read_commit
from include.ground.errors import Terminal
from include.ground.paths import bronze_path, decision_log_path
from include.ground.schema_registry import (
    UNKNOWN_TYPE,
    RegisteredSchema,
    RegistryNotSet,
    RegistryRefused,
    RegistryUnreachable,
    schema_registry,
)
from include.ground.settings import Settings
from include.read.rejected_records import DecidedRecord, DecisionLogReader, Position
from spark_jobs.contract.payload_texts import UNREAD, PayloadTexts
from spark_jobs.contract.record_reader import REASONS
from spark_jobs.contract.validator import Validator

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
        joined = ((batch, self.frames(self._named.get(batch, {}))) for batch in range(first, last + 1))
        return [
            VersionRange(batches[0], batches[-1], frames)
            for frames, group in groupby(joined, lambda pair: pair[1])
            if (batches := [batch for batch, _ in group])
        ]

    def frames(self, versions: Versions) -> Frames:
        """Return the tables in these versions; of one that a batch does not name, which is newer, the first."""
        return {t.name: self._frame(t.name, versions.get(t.name, 0)) for t in self._dataset.pipeline.reference}

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


MOST_QUERIED = 100
"""Ids of one run that the registry is queried for, the smallest first: damaged records name any of 2^32."""
FEW = 32
"""Up to this number, all schemas are part of the query, which is then the same for every run."""


ReadHeads = Callable[[Sequence[Path]], Iterable[bytes]]
"""Returns the different first HEADER_BYTES of the records' values in files."""


def read_heads(records: Sequence[Path]) -> Iterable[bytes]:
    """Return the different first HEADER_BYTES of the records' values, as this process reads them."""
    found = set[bytes]()
    for path in records:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["value"]):
                found.update(pc.unique(pc.binary_slice(batch["value"], 0, HEADER_BYTES)).drop_null().to_pylist())
    return found


@dataclass(frozen=True)
class PayloadSchemas:
    """The schemas of a dataset's records. `learns`: whether the registry is queried; `verified`: ids compared."""

    settings: Settings
    dataset: Dataset
    learns: bool = True
    heads: ReadHeads = read_heads
    verified: set[int] = field(default_factory=set)

    @cached_property
    def _is_decoded(self) -> bool:
        return self.dataset.contract.payload.is_decoded

    def learn(self, records: Sequence[Path]) -> int:
        """Keep the schemas of ids that are new in these files; return the length of the list in bytes.

        An id that the registry does not know is noted as unknown, and stays so until the registry knows it. Raises
        RegistryNotSet, RegistryUnreachable, RegistryRefused, Terminal (`schema-replaced`); nothing is validated then.
        """
        if not self._is_decoded:
            return 0
        if self.learns and records:
            known = known_schemas(self.settings, self.dataset.name)
            numbers = [number for number in self._ids(records, known) if number not in self.verified]
            self._verify([known[number] for number in numbers if number in known])
            self._keep([number for number in numbers if number not in known])
        return schemas_size(self.settings, self.dataset.name)

    def _ids(self, records: Sequence[Path], known: WriterSchemas) -> list[int]:
        """Return the ids that records name: the known ones, and of the others the smallest MOST_QUERIED."""
        heads = (each for each in self.heads(records) if len(each) == HEADER_BYTES and not each[0])
        found = {int.from_bytes(each[1:]) for each in heads}
        return [*sorted(found & known.keys()), *sorted(found - known.keys())[:MOST_QUERIED]]

    def _verify(self, kept: Sequence[RegisteredSchema]) -> None:
        """Compare kept schemas with the registry's; if it does not answer, or knows none of them, nothing changes."""
        registry = schema_registry(self.settings)
        if registry is None:
            return
        with suppress(RegistryUnreachable, RegistryRefused):
            for schema in kept:
                found = registry.schema(schema.id)
                if found is not None and schema.type == UNKNOWN_TYPE:
                    keep_schemas(self.settings, self.dataset.name, [found])
                elif found and found.text != schema.text and json.loads(found.text) != json.loads(schema.text):
                    raise Terminal(
                        f"{self.dataset.name}: the registry at {registry.url} has another schema {schema.id} than the"
                        " one by which records were read; records wait in bronze, nothing is lost",
                        "set HEADRACE_SCHEMA_REGISTRY_URL to the registry of the topic's producers; a new one needs a"
                        " new topic",
                        code="schema-replaced",
                        dataset=self.dataset.name,
                        id=schema.id,
                    )
        self.verified.update(schema.id for schema in kept if schema.type != UNKNOWN_TYPE)

    def _keep(self, fresh: Sequence[int]) -> None:
        if not fresh:
            return
        registry = schema_registry(self.settings)
        if registry is None:
            numbers = ", ".join(map(str, fresh[:5]))
            raise RegistryNotSet(f"{self.dataset.name}: records were written with schemas that are not kept: {numbers}")
        found = [registry.schema(number) or RegisteredSchema(number, UNKNOWN_TYPE, "") for number in fresh]
        keep_schemas(self.settings, self.dataset.name, found)
        self.verified.update(schema.id for schema in found if schema.type != UNKNOWN_TYPE)

    def texts(self, records: Sequence[Path], until: int) -> PayloadTexts:
        """Return how these records are read by the list's first `until` bytes."""
        contract = self.dataset.contract
        if not self._is_decoded:
            return PayloadTexts(contract)
        listed = known_schemas(self.settings, self.dataset.name, until)
        known = {number: schema for number, schema in listed.items() if schema.type != UNKNOWN_TYPE}
        numbers = known.keys() if len(known) <= FEW else known.keys() & set(self._ids(records, known))
        return PayloadTexts(contract, tuple(known[number] for number in sorted(numbers)))


SCHEMA = "partition int, offset long, fixed binary, discarded boolean"
DISCARDED = "array(named_struct('rule', 'discarded', 'column', '', 'detail', cast(null as string)))"


@dataclass
class RecordDecisions:
    """The decisions about a dataset's records. A run reads only those since the last run."""

    settings: Settings
    dataset: str

    def __post_init__(self) -> None:
        self._path = decision_log_path(self.settings, self.dataset)
        self._reader = DecisionLogReader(self._path)

    def until(self) -> int:
        """The current length of the list of decisions."""
        return self._path.stat().st_size if self._path.exists() else 0

    def for_batches(self, batches: tuple[int, int], until: int) -> dict[Position, DecidedRecord]:
        """Return the decisions about records of these batches within the first `until` bytes of the list."""
        if not until:
            return {}
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
