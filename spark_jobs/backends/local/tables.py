"""What this process knows of a release besides its tables: the index of identities, prepared queries, gold's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from include.declare.children import Elements
from include.ground.paths import identities_path
from spark_jobs.backends.local.gold import EmbeddedMerge, embedded_merge
from spark_jobs.backends.local.identities import IdentityLookup
from spark_jobs.backends.local.prepared_query import PreparedSilver, ScratchFolder
from spark_jobs.layers.child_rows import source_rows
from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_inputs import GoldInputs
from spark_jobs.layers.silver_tables import SilverTables
from spark_jobs.tables.spark_files import no_rows


@dataclass(frozen=True, kw_only=True)
class LocalTables(SilverTables):
    """The tables of a release, with what finds and fills their rows in this process.

    `inputs`: of gold's merges; `child_inputs`: of merges over children. `merges`: by name of a gold table, how DuckDB
    merges it; it has none that Spark merges.
    """

    identities: IdentityLookup
    inputs: GoldInputs
    child_inputs: Mapping[Elements, GoldInputs]
    merges: Mapping[str, EmbeddedMerge]

    @cached_property
    def input_names(self) -> Sequence[str]:
        """The columns that gold's merges read."""
        return self.inputs.names

    @cached_property
    def prepared(self) -> PreparedSilver:
        """The queries of this process, built when they are first executed."""
        return PreparedSilver(self.spark, self.queries_folder)


def local_tables(writer: SilverTables, gold: Sequence[GoldTable]) -> LocalTables:
    """Return the tables of a release for this process; the merges of its gold tables are planned."""
    dataset, silver, scratch = writer.dataset, writer.silver, ScratchFolder(writer.queries_folder)
    folder = identities_path(writer.decisions.settings, dataset.name, dataset.release)
    nothing = no_rows(writer.spark, silver.spec.data_schema)
    sources = {over: source_rows(over, nothing).schema for over in {target.gold.over for target in gold} | {None}}
    inputs = {over: GoldInputs(tuple(source.fieldNames())) for over, source in sources.items()}
    merges = {
        target.gold.name: merge
        for target in gold
        if (merge := embedded_merge(target, sources[over := target.gold.over], inputs[over], scratch)) is not None
    }
    return LocalTables(
        **{each.name: getattr(writer, each.name) for each in fields(writer)},
        identities=IdentityLookup(dataset, silver, folder, owns=writer.is_owned),
        inputs=inputs[None],
        child_inputs={over: found for over, found in inputs.items() if over is not None},
        merges=merges,
    )
