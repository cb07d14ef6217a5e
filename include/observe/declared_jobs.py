"""The jobs of a dataset as it is declared: what each reads and writes, and the origins of its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from include.declare.analyses import Analysis
from include.declare.column_lineage import dataset_columns, derived_lineage
from include.declare.column_origins import TableColumns, unique, used
from include.declare.dataset import Dataset
from include.declare.derived_dataset import DerivedDataset
from include.declare.gold import Gold
from include.declare.lineage_graph import REFERENCE, described_gold
from include.declare.query_columns import query_columns
from include.observe.event_naming import TOPIC
from include.read.published_tables import RECORD_LAYERS

STREAMING, BATCH = "STREAMING", "BATCH"
SPARK, DUCKDB = "spark", "duckdb"


@dataclass(frozen=True)
class DeclaredJob:
    """A job: its `name`, its datasets by their names in a LineageEdge, and the origins of the columns it writes.

    `kind` is its type for people; `sql` its query, "" without one.
    """

    name: str
    kind: str
    about: str
    inputs: tuple[str, ...]
    outputs: Mapping[str, TableColumns]
    processing: str = STREAMING
    sql: str = ""
    dialect: str = SPARK


def stream_job(dataset: str) -> DeclaredJob:
    """Return the job that a stream's driver is; the jobs of its layers have the datasets."""
    return DeclaredJob(dataset, "STREAM", f"The stream of {dataset}: its driver.", (), {})


def dataset_jobs(dataset: Dataset) -> tuple[DeclaredJob, ...]:
    """Return the jobs from a dataset's topic to its gold: ingest, refine, and one for each gold table."""
    name, columns = dataset.name, dataset_columns(dataset)
    bronze, silver, rejected = (f"{layer}.{name}" for layer in RECORD_LAYERS)
    reference = tuple(f"{REFERENCE}{name}.{table.name}" for table in dataset.pipeline.reference)
    ingest = f"Writes every record of topic {dataset.pipeline.topic} to bronze, byte for byte."
    refine = "Parses and validates records by contract.yaml, finds duplicates, adds the columns of silver.py."
    return (
        DeclaredJob(f"{name}.ingest", "INGEST", ingest, (topic_of(dataset),), {bronze: columns[bronze]}),
        DeclaredJob(
            f"{name}.refine",
            "REFINE",
            refine,
            (bronze, *reference),
            {silver: columns[silver], rejected: columns[rejected]},
        ),
        *(_gold_job(name, gold, silver, columns[f"gold.{gold.name}"]) for gold in dataset.pipeline.gold),
    )


def topic_of(dataset: Dataset) -> str:
    """Return the name of a dataset's topic in lineage."""
    return f"{TOPIC}{dataset.pipeline.topic}"


def _gold_job(dataset: str, gold: Gold, silver: str, columns: TableColumns) -> DeclaredJob:
    table = f"gold.{gold.name}"
    about = f"Keeps {table} up to date: {described_gold(gold)}."
    return DeclaredJob(f"{dataset}.{table}", "GOLD", about, (silver,), {table: columns}, sql=gold.query)


def derived_jobs(derived: DerivedDataset, columns: Mapping[str, Sequence[str]]) -> tuple[DeclaredJob, ...]:
    """Return one job for each gold table of a derived dataset; `columns`: those of its sources' tables."""
    origins, sources = derived_lineage(derived, columns), tuple(derived.pipeline.sources.values())
    return tuple(
        DeclaredJob(
            f"{derived.name}.gold.{gold.name}",
            "GOLD",
            f"Recomputes the grains of gold.{gold.name} that changed rows of its sources touch.",
            sources,
            {f"gold.{gold.name}": origins[f"gold.{gold.name}"]},
            sql=gold.query,
        )
        for gold in derived.pipeline.gold
    )


def analysis_job(analysis: Analysis, sources: Mapping[str, Sequence[str]], result: Sequence[str]) -> DeclaredJob:
    """Return the job of an analysis over `sources` with their columns; `result`: the columns of its table.

    An algorithm makes each of its columns of all columns of the query.
    """
    query = query_columns(analysis.declared.query, sources, DUCKDB)
    origins = unique(each for found in query.columns.values() for each in used(found, "transformation"))
    return DeclaredJob(
        f"{analysis.dataset}.analysis.{analysis.name}",
        "ANALYSIS",
        f"{type(analysis.declared).__name__} over {', '.join(sources) or 'no table'}.",
        tuple(sources),
        {f"analysis.{analysis.name}": TableColumns(dict.fromkeys(result, origins), query.rows)},
        processing=BATCH,
        sql=analysis.declared.query,
        dialect=DUCKDB,
    )


def plan_job(jobs: Sequence[DeclaredJob], dataset: str, kind: str) -> DeclaredJob:
    """Return the job of a kind of plan: from bronze, or the sources of a derived dataset, to all tables of `jobs`."""
    recomputing = [job for job in jobs if job.kind != "INGEST"]
    outputs = {table: columns for job in recomputing for table, columns in job.outputs.items()}
    inputs = dict.fromkeys(table for job in recomputing for table in job.inputs if table not in outputs)
    about = f"A {kind} of {dataset}: recomputed in a folder of its own, compared, approved, then applied."
    return DeclaredJob(f"{dataset}.{kind}", "PLAN", about, tuple(inputs), _composed(outputs), BATCH)


def _composed(outputs: Mapping[str, TableColumns]) -> dict[str, TableColumns]:
    """Return origins in tables outside `outputs`: through silver, to bronze."""
    return {table: TableColumns(dict(_through(columns, outputs))) for table, columns in outputs.items()}


def _through(columns: TableColumns, outputs: Mapping[str, TableColumns]) -> Iterator[tuple[str, tuple]]:  # type: ignore[type-arg]
    for name, origins in columns.columns.items():
        inner = (
            below
            for each in origins
            for below in (
                used(outputs[each.table].columns.get(each.column, ()), each.use) if each.table in outputs else (each,)
            )
        )
        yield name, unique(inner)
