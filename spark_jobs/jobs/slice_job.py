"""Slice job: recomputes a slice of history with the published release (docs/architecture.md §6).

Records come from bronze, and from Kafka where the plan requires it; a range of a derived dataset from its sources at
the published versions. It writes the plan's folder of rows only. After a crash the next start begins again.

Usage: python -m spark_jobs.jobs.slice_job DATASET PLAN. Prints one JSON object per line: progress, then `built`.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from include.declare.dataset import released_dataset
from include.declare.derived_dataset import released_derived
from include.declare.grain_range import grain_range
from include.declare.history_slice import BRONZE, KAFKA, Slice, Span
from include.ground.errors import Refused, Terminal
from include.ground.paths import patch_path
from include.ground.record_coordinates import CONTENT
from include.ground.settings import Settings
from include.ground.sql_quoting import same_sql, sql_names
from include.read.publication import Publication, read_publication, tables_of
from include.read.published_tables import BatchOffsets, batch_offsets, open_dataset
from include.state.release_files import PlanBuild, plan_build_file, planned_slice_file
from include.state.run_files import bootstrap_servers
from spark_jobs.backends.backend import Sql
from spark_jobs.backends.local.arrow_files import read_arrow, rows_in_folder
from spark_jobs.backends.local.kafka_ranges import KafkaRanges
from spark_jobs.backends.release import Release, pinned_release
from spark_jobs.backends.spark_session import open_session
from spark_jobs.history.rebuild_derived import DerivedSlice, published_sources, rebuild_derived
from spark_jobs.history.rebuild_gold import rebuild_gold
from spark_jobs.history.rebuild_slice import PlanFolder, in_spans, rebuild_slice, span_files
from spark_jobs.jobs.bounded_job import report, run_reading_job
from spark_jobs.layers.bronze import RENAMED, complete_source_options
from spark_jobs.layers.derived import open_source
from spark_jobs.layers.gold_layer import GOLD_AT_A_TIME
from spark_jobs.layers.silver_tables import first_unexpired_batch
from spark_jobs.stream.pacing import BatchLimit, newest_files, size_in_bronze
from spark_jobs.tables.data_files import parquet_files, write_parquet
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.failpoints import Step, pass_step

ANTI_JOIN = 'anti join {other} using ("partition", "offset")'
DIFFERING = f"""
select "partition", "offset" from kafka as k join known as b using ("partition", "offset")
where not ({same_sql(CONTENT, "k", "b")})
order by all limit 1
"""


def planned_slice(settings: Settings, plan: str, published: Publication) -> Slice:
    """Return the slice of a plan. Raises Refused for another release, and Terminal without the plan's file."""
    planned = planned_slice_file(settings, plan).read()
    if planned is None:
        raise Terminal(f"plan {plan} has no plan.json; nothing was built", "headrace plan list")
    if published.release != planned.release:
        raise Refused(
            f"plan {plan} is about release {planned.release}, and release {published.release} is published now;"
            " nothing was built",
            f"headrace plan cancel {plan}, then plan it again",
            code="other-release",
            plan=plan,
            published=published.release,
        )
    return planned.slice


def rebuild(settings: Settings, spark: SparkSession, dataset: str, plan: str) -> PlanBuild:
    """Recompute the plan's slice; return the content of `built.json`, which is written last.

    Raises SourcesGone, Refused for another release, and Terminal where bronze and Kafka differ.
    """
    read_at_ms, began = int(time.time() * 1000), time.monotonic()
    published = read_publication(settings, dataset)
    requested = planned_slice(settings, plan, published)
    folder = PlanFolder(patch_path(settings, dataset, published.release, plan))
    shutil.rmtree(folder.path, ignore_errors=True)
    read = PlanBuild(uuid4().hex, published.batch, 0, read_at_ms, published.release, reference=requested.reference)
    rebuilt = rebuilt_derived if published.is_derived else rebuilt_records
    found = rebuilt(settings, spark, published, requested, folder)
    built = replace(read, **found, seconds=round(time.monotonic() - began, 1))
    shutil.rmtree(folder.path / "_staging", ignore_errors=True)
    plan_build_file(settings, dataset, published.release, plan).write(built)
    return built


def rebuilt_records(
    settings: Settings, spark: SparkSession, published: Publication, requested: Slice, folder: PlanFolder
) -> dict[str, Any]:
    """Recompute a slice of records, and the gold that it touches. Raises Terminal where bronze and Kafka differ."""
    versions = {name: table.version for name, table in published.tables.items()}
    declared = released_dataset(settings, published.dataset, published.release)
    release = pinned_release(spark, settings, declared, versions, requested.reference)
    records = slice_records(settings, release, requested, published, folder)
    steps = 1 + len(release.gold)
    report(at="silver and rejected", done=0, of=steps)
    done = rebuild_slice(release, records, requested, folder)
    pass_step(Step.SLICE_REBUILT)
    differing = dict(done.differing)
    with ThreadPoolExecutor(GOLD_AT_A_TIME, "gold") as pool:
        silver, complete = release.writer.silver, first_unexpired_batch(release.writer, "silver")
        backend = release.backend
        counted = pool.map(lambda t: rebuild_gold(backend, t, silver, folder, published.batch, complete), release.gold)
        for number, (target, count) in enumerate(zip(release.gold, counted, strict=True), start=1):
            differing[target.table.spec.name] = count
            report(at=target.table.spec.name, done=number, of=steps)
    filled = rows_in_folder(folder.rows("added", release.writer.bronze.spec.name))
    counts = {"records": done.core, "closure": done.closure, "filled": filled}
    return {**counts, "differing": differing, "decided_until": done.decided_until}


def rebuilt_derived(
    settings: Settings, spark: SparkSession, published: Publication, requested: Slice, folder: PlanFolder
) -> dict[str, Any]:
    """Recompute a range of a derived dataset over the sources that its publication names. Raises SourcesGone."""
    derived = released_derived(settings, published.dataset, published.release)
    sources = published_sources(settings, derived, published)
    differing, rows, tables = dict[str, int](), 0, tables_of(settings, published)
    for done, gold in enumerate(derived.pipeline.gold):
        table = tables[f"gold.{gold.name}"]
        report(at=table.name, done=done, of=len(tables))
        inside = None
        if requested.since is not None and requested.until is not None:
            inside = grain_range(gold.grain, open_dataset(table).schema, requested.since, requested.until)
        differing[table.name] = rebuild_derived(spark, DerivedSlice(gold, open_source(table), inside, folder), sources)
        rows += rows_in_folder(folder.rows("after", table.name))
        pass_step(Step.SLICE_REBUILT)
    return {"records": rows, "differing": differing}


def slice_records(
    settings: Settings, release: Release, requested: Slice, published: Publication, folder: PlanFolder
) -> list[Path]:
    """Return files of the slice's records, each from the source that the plan names; write what bronze lacks."""
    bronze, old, from_kafka = release.writer.bronze, Slice(requested.of(BRONZE)), Slice(requested.of(KAFKA))
    target = folder.staging("records")
    with release.backend.sql() as sql:
        records, columns = [], sql_names(bronze.spec.data_schema.fieldNames())
        if old.spans:
            _view_bronze(sql, "old", bronze, old, published.batch)
            records.append(f"select {columns} from old")
        if from_kafka.spans:
            offsets = [
                t
                for t in batch_offsets(bronze.spec.path, published.batch)
                if any(t.partition == s.partition and t.start < s.end and s.start < t.end for s in from_kafka.spans)
            ]
            write_kafka_records(settings, release, from_kafka, offsets, folder.staging("kafka"))
            sql.view_folder("kafka", folder.staging("kafka"), bronze.spec.data_schema)
            _view_bronze(sql, "known", bronze, from_kafka, published.batch)
            _refuse_other_records(sql, bronze.spec.name)
            # Bronze still has the records that Kafka has compacted away.
            records.append(f"select {columns} from kafka")
            records.append(f"select {columns} from known {ANTI_JOIN.format(other='kafka')}")
        missing = f"kafka {ANTI_JOIN.format(other='known')}" if from_kafka.spans else "old where false"
        sql.save(f"select {columns} from {missing}", folder.rows("added", bronze.spec.name))
        sql.save_records(" union all ".join(records), target)
    return parquet_files(target)


def _view_bronze(sql: Sql, name: str, bronze: Table, requested: Slice, batch: int) -> None:
    files = span_files(bronze, requested, "partition", "offset")
    sql.view_table(f"{name}_files", bronze, files)
    inside = in_spans(requested, f"{name}_files", "partition", "offset")
    sql.view_query(name, f"select * from ({inside}) as inside where _batch_id <= {batch}")


def _refuse_other_records(sql: Sql, table: str) -> None:
    """Raise Terminal for the first record of view `known` that differs in view `kafka`."""
    differing_record = sql.rows(DIFFERING)
    if differing_record:
        partition, offset = differing_record[0]
        raise Terminal(
            f"{table}: partition {partition} offset {offset} differs from the record in Kafka; nothing was built",
            "headrace audit",
            code="bronze-differs",
            table=table,
            partition=partition,
            offset=offset,
        )


def write_kafka_records(
    settings: Settings, release: Release, requested: Slice, offsets: Sequence[BatchOffsets], folder: Path
) -> None:
    """Write Kafka's records of the spans in bronze's columns, each with the batch that its offset belongs to.

    They are read as the stream reads them, in pieces as large as its batches.
    """
    bronze, topic = release.writer.bronze, release.dataset.pipeline.topic
    limit = BatchLimit(settings.batch_records, settings.batch_bytes)
    limit.measure(*size_in_bronze(bronze, newest_files(bronze)))
    schema = to_arrow_schema(bronze.spec.data_schema, timezone="UTC")
    options = complete_source_options(settings, bootstrap_servers(settings), {}, {})
    folder.mkdir(parents=True)
    with closing(KafkaRanges(release.writer.spark, topic, options, threading.Event())) as reader:
        for number, ranges in enumerate(_pieces(requested.spans, limit.apply())):
            for part, file in enumerate(reader.write(ranges, folder)):
                rows = _placed(read_arrow([file]).rename_columns(RENAMED), offsets).select(schema.names).cast(schema)
                write_parquet(rows.to_batches(), schema, folder / f"{number}-{part}.parquet", bronze.spec.writing)
                file.unlink()


def _pieces(spans: Sequence[Span], most: int) -> Iterator[dict[int, tuple[int, int]]]:
    """Yield ranges of at most `most` offsets: one of each partition at a time, which are read at once."""
    waiting = [
        (span.partition, start, min(start + most, span.end))
        for span in spans
        for start in range(span.start, span.end, most)
    ]
    while waiting:
        group = {partition: (start, end) for partition, start, end in reversed(waiting)}
        yield group
        waiting = [piece for piece in waiting if group[piece[0]] != piece[1:]]


def _placed(rows: pa.Table, offsets: Sequence[BatchOffsets]) -> pa.Table:
    """Return the rows of a partition that lie in a batch, with its number."""
    partition = rows["partition"][0].as_py()
    known = sorted((o.start, o.end, o.batch) for o in offsets if o.partition == partition and o.start < o.end)
    starts, ends, batches = np.array([(-1, -1, -1), *known], np.int64).T
    found = rows["offset"].to_numpy()
    at = np.searchsorted(starts, found, "right") - 1
    return rows.append_column("_batch_id", pa.array(batches[at])).filter(pa.array(found < ends[at]))


def build(settings: Settings, dataset: str, plan: str) -> None:
    """Report the rebuilt slice of a plan."""
    report(built=asdict(rebuild(settings, open_session(settings, f"headrace slice {plan}"), dataset, plan)))


if __name__ == "__main__":
    sys.exit(run_reading_job("slice", build, *sys.argv[1:]))
