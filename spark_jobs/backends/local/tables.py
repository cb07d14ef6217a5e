"""What this process knows of a release besides its tables: the index of identities, prepared queries, gold's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from include.ground.paths import identities_path
from spark_jobs.backends.local.gold import EmbeddedMerge, embedded_merge
from spark_jobs.backends.local.identities import IdentityLookup
from spark_jobs.backends.local.prepared_query import PreparedSilver, ScratchFolder
from spark_jobs.layers.gold_files import GoldTable
from spark_jobs.layers.gold_inputs import GoldInputs
from spark_jobs.layers.silver_tables import SilverTables


@dataclass(frozen=True, kw_only=True)
class LocalTables(SilverTables):
    """The tables of a release, with what finds and fills their rows in this process.

    `inputs`: of gold's merges. `merges`: by name of a gold table, how DuckDB merges it; it has none that Spark merges.
    """

    identities: IdentityLookup
    inputs: GoldInputs
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
    inputs = GoldInputs(tuple(silver.spec.data_schema.fieldNames()))
    merges = {
        target.gold.name: merge
        for target in gold
        if (merge := embedded_merge(target, silver.spec, inputs, scratch)) is not None
    }
    return LocalTables(
        **{each.name: getattr(writer, each.name) for each in fields(writer)},
        identities=IdentityLookup(dataset, silver, folder, owns=writer.is_owned),
        inputs=inputs,
        merges=merges,
    )
