"""Whether the queries of derived datasets are valid over tables that are not published yet, as Spark analyses them.

Reads: snapshots, schemas. Writes: nothing, and reads no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from include.declare.derived_dataset import DerivedDataset, DerivedGold, released_derived
from include.declare.yaml_declarations import DeclarationRefused
from include.ground.settings import Settings
from include.plans.reader_effects import Analysed
from include.read.publication import Publication, PublishedTable, publications, published_tables, tables_of
from spark_jobs.layers.derived import SourceTable, checked_rows, open_source


def analysed_readers(settings: Settings, spark: SparkSession, built: Sequence[Publication]) -> dict[str, Analysed]:
    """Return what is wrong with each published derived dataset that reads a table of these, over their new columns."""
    before = published_tables(settings)
    after = before | {name: table for each in built for name, table in tables_of(settings, each).items()}
    changed = {name for each in built for name in each.tables}
    found = dict[str, Analysed]()
    for name, publication in publications(settings).items():
        if publication.is_derived and changed & set(publication.sources):
            derived = released_derived(settings, name, publication.release)
            faults = tuple(_faults(settings, spark.newSession(), derived, before, after))
            found[name] = Analysed(publication.release, faults)
    return found


def _faults(
    settings: Settings,
    spark: SparkSession,
    derived: DerivedDataset,
    before: Mapping[str, PublishedTable],
    after: Mapping[str, PublishedTable],
) -> Iterator[str]:
    """Yield the queries that are valid over the tables before, and not after or with columns of other types."""
    old, new = (_sources(derived, tables) for tables in (before, after))
    for gold in derived.pipeline.gold:
        was = _result(settings, spark, derived, gold, old)
        if isinstance(was, str):
            continue
        now = _result(settings, spark, derived, gold, new)
        if isinstance(now, str):
            yield now
            continue
        kinds = {field.name: field.dataType.simpleString() for field in now.fields}
        for field in was.fields:
            kind, found = field.dataType.simpleString(), kinds.get(field.name)
            if kind != found:
                yield _retyped(f"gold.{gold.name}.{field.name}", kind, found)


def _retyped(column: str, kind: str, new: str | None) -> str:
    if new is None:
        return f"{column} would be missing, is {kind}"
    return f"{column} would become {new}, is {kind}: for a release of both, write cast(… as {new}) in its query"


def _sources(derived: DerivedDataset, tables: Mapping[str, PublishedTable]) -> dict[str, SourceTable]:
    return {name: open_source(tables[table]) for name, table in derived.pipeline.sources.items() if table in tables}


def _result(
    settings: Settings,
    spark: SparkSession,
    derived: DerivedDataset,
    gold: DerivedGold,
    sources: Mapping[str, SourceTable],
) -> StructType | str:
    """Return the columns of a query's result, or why it is not valid."""
    try:
        return checked_rows(spark, settings, derived, gold, sources).schema
    except DeclarationRefused as error:
        return "; ".join(f"{each.file.name}:{each.line} {each.key}: {each.why}" for each in error.problems)
