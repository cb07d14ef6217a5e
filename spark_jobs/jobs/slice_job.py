"""Slice job: recomputes a slice of history with the published release (docs/architecture.md §6).

Reads: bronze, and Kafka where the plan requires it; the published tables. Writes: the plan's folder of rows only.
Guarantee: published and recomputed rows of the same records, at the same batch.
After a crash: the next start begins again; no table was changed.
Does not: decide on the difference, or change a table.

Usage: python -m spark_jobs.jobs.slice_job DATASET PLAN. Prints one JSON object per line: progress, then `built`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.catalog.dataset import released_dataset
from include.catalog.history_slice import BRONZE, KAFKA, Slice, Span
from include.errors import Terminal
from include.paths import patch_path
from include.reading.bronze_ranges import BatchOffsets, batch_offsets
from include.reading.publication import Publication, read_publication
from include.record_coordinates import CONTENT
from include.settings import Settings
from include.state.broker_address import bootstrap_servers
from include.state.release_files import PlanBuild, plan_build_file
from spark_jobs.engine.job_progress import report
from spark_jobs.engine.rebuild_gold import rebuild_gold
from spark_jobs.engine.rebuild_slice import PlanFolder, in_spans, rebuild_slice, span_files
from spark_jobs.jobs.planned_slice import planned_slice, run_slice_job
from spark_jobs.layers.bronze_files import RENAMED
from spark_jobs.layers.expired_rows import first_unexpired_batch
from spark_jobs.layers.gold_layer import GOLD_AT_A_TIME
from spark_jobs.layers.kafka_source import complete_source_options
from spark_jobs.layers.release_tables import Release, pinned_release
from spark_jobs.storage.delta_table import Table
from spark_jobs.storage.duckdb_session import DuckSession, duckdb_session, parquet_files, rows_in_folder, write_folder
from spark_jobs.storage.failpoints import Step, pass_step

ANTI_JOIN = 'anti join {other} using ("partition", "offset")'
DIFFERING = f"""
select "partition", "offset" from kafka as k join known as b using ("partition", "offset")
where {" or ".join(f'k."{name}" is distinct from b."{name}"' for name in CONTENT)}
order by all limit 1
"""


class BronzeDiffers(Terminal):
    """Bronze and Kafka have different records at one offset; a plan never overwrites bronze."""

    def __init__(self, table: str, partition: int, offset: int) -> None:
        super().__init__(
            f"{table}: partition {partition} offset {offset} differs from the record in Kafka; nothing was built",
            "headrace audit",
        )
        self.table, self.partition, self.offset = table, partition, offset


def rebuild(settings: Settings, spark: SparkSession, dataset: str, plan: str) -> PlanBuild:
    """Recompute the plan's slice; return the content of `built.json`, which is written last.

    Raises OtherRelease, BronzeDiffers.
    """
    read_at_ms, began = int(time.time() * 1000), time.monotonic()
    published = read_publication(settings, dataset)
    requested = planned_slice(settings, plan, published)
    folder = PlanFolder(patch_path(settings, dataset, published.release, plan))
    shutil.rmtree(folder.path, ignore_errors=True)
    versions = {name: table.version for name, table in published.tables.items()}
    declared = released_dataset(settings, dataset, published.release)
    release = pinned_release(spark, settings, declared, versions, requested.reference)
    records = slice_records(settings, release, requested, published, folder)
    steps = 1 + len(release.gold)
    report(at="silver and rejected", done=0, of=steps)
    done = rebuild_slice(release, records, requested, folder)
    pass_step(Step.SLICE_REBUILT)
    differing = dict(done.differing)
    with ThreadPoolExecutor(GOLD_AT_A_TIME, "gold") as pool:
        silver, complete = release.writer.silver, first_unexpired_batch(release.writer, "silver")
        counted = pool.map(lambda t: rebuild_gold(t, silver, folder, published.batch, complete), release.gold)
        for number, (target, count) in enumerate(zip(release.gold, counted, strict=True), start=1):
            differing[target.table.spec.name] = count
            report(at=target.table.spec.name, done=number, of=steps)
    built = PlanBuild(
        attempt=uuid4().hex,
        read_at_ms=read_at_ms,
        release=published.release,
        batch=published.batch,
        records=done.core,
        closure=done.closure,
        filled=rows_in_folder(folder.rows("added", release.writer.bronze.spec.name)),
        differing=differing,
        decided_until=done.decided_until,
        seconds=round(time.monotonic() - began, 1),
        reference=requested.reference,
    )
    shutil.rmtree(folder.path / "_staging", ignore_errors=True)
    plan_build_file(settings, dataset, published.release, plan).write(built)
    return built


def slice_records(
    settings: Settings, release: Release, requested: Slice, published: Publication, folder: PlanFolder
) -> list[Path]:
    """Return files of the slice's records, each from the source that the plan names; write what bronze lacks."""
    bronze, old, from_kafka = release.writer.bronze, Slice(requested.of(BRONZE)), Slice(requested.of(KAFKA))
    target = folder.staging("records")
    with duckdb_session() as duck:
        records = []
        if old.spans:
            _view_bronze(duck, "old", bronze, old, published.batch)
            records.append("select * from old")
        if from_kafka.spans:
            offsets = [
                t
                for t in batch_offsets(bronze.spec.path, published.batch)
                if any(_overlap(t, s) for s in from_kafka.spans)
            ]
            write_folder(kafka_records(settings, release, from_kafka, offsets), folder.staging("kafka"))
            duck.view_folder("kafka", folder.staging("kafka"), bronze.spec.data_schema)
            _view_bronze(duck, "known", bronze, from_kafka, published.batch)
            _refuse_other_records(duck, bronze.spec.name)
            # Bronze still has the records that Kafka has compacted away.
            records += ["select * from kafka", f"select * from known {ANTI_JOIN.format(other='kafka')}"]
        missing = f"kafka {ANTI_JOIN.format(other='known')}" if from_kafka.spans else "old where false"
        duck.save(f"select * from {missing}", folder.rows("added", bronze.spec.name))
        duck.save_records(" union all ".join(records), target)
    return parquet_files(target)


def _view_bronze(duck: DuckSession, name: str, bronze: Table, requested: Slice, batch: int) -> None:
    files = span_files(bronze, requested, "partition", "offset")
    duck.view_table(f"{name}_files", bronze, files)
    inside = in_spans(requested, f"{name}_files", "partition", "offset")
    duck.view_query(name, f"select * from ({inside}) where _batch_id <= {batch}")


def _refuse_other_records(duck: DuckSession, table: str) -> None:
    """Raise BronzeDiffers for the first record of view `known` that differs in view `kafka`."""
    differing_record = duck.rows(DIFFERING)
    if differing_record:
        raise BronzeDiffers(table, *differing_record[0])


def kafka_records(settings: Settings, release: Release, requested: Slice, offsets: Sequence[BatchOffsets]) -> DataFrame:
    """Return Kafka's records of the spans in bronze's columns, with the batch that each offset belongs to."""
    spark, bronze = release.writer.spark, release.writer.bronze
    topic = release.dataset.pipeline.topic
    parts = [_read_kafka(settings, spark, topic, spans) for spans in _one_per_partition(requested.spans)]
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part)
    known = [(o.batch, o.partition, o.start, o.end) for o in offsets]
    batches = spark.createDataFrame(known, "_batch_id long, _part int, _start long, _end long")
    inside = "partition = _part and offset >= _start and offset < _end"
    placed = rows.join(F.broadcast(batches), F.expr(inside))
    return placed.withColumnsRenamed(RENAMED).select(*bronze.spec.data_schema.fieldNames())


def _one_per_partition(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Yield groups of spans with one span per partition each: Spark's Kafka source takes one range per partition."""
    waiting = list(spans)
    while waiting:
        group = {span.partition: span for span in reversed(waiting)}
        yield list(group.values())
        waiting = [span for span in waiting if group[span.partition] is not span]


def _read_kafka(settings: Settings, spark: SparkSession, topic: str, spans: Sequence[Span]) -> DataFrame:
    chosen = {
        "assign": json.dumps({topic: [span.partition for span in spans]}),
        "startingOffsets": json.dumps({topic: {str(span.partition): span.start for span in spans}}),
        "endingOffsets": json.dumps({topic: {str(span.partition): span.end for span in spans}}),
    }
    options = complete_source_options(settings, bootstrap_servers(settings), chosen, {})
    # Of a stream only.
    options.pop("minOffsetsPerTrigger", None)
    return spark.read.format("kafka").options(**options).load()


def _overlap(offsets: BatchOffsets, span: Span) -> bool:
    return offsets.partition == span.partition and offsets.start < span.end and span.start < offsets.end


if __name__ == "__main__":
    sys.exit(run_slice_job(sys.argv[1:], rebuild))
