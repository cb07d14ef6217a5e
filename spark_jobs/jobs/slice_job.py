"""Slice job: recomputes a slice of history with the published release (docs/architecture.md §6).

Reads: bronze, and Kafka where the plan requires it; the published tables. Writes: the plan's folder of rows only.
Guarantee: published and recomputed rows of the same records, at the same batch.
After a crash: the next start begins again; no table was changed.
Does not: decide on the difference, or change a table.

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
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from include.declare.dataset import released_dataset
from include.declare.history_slice import BRONZE, KAFKA, Slice, Span
from include.ground.errors import Terminal
from include.ground.paths import patch_path
from include.ground.record_coordinates import CONTENT
from include.ground.settings import Settings
from include.read.publication import Publication, read_publication
from include.read.published_tables import BatchOffsets, batch_offsets
from include.state.release_files import PlanBuild, plan_build_file
from include.state.run_files import bootstrap_servers
from spark_jobs.backends.backend import Sql
from spark_jobs.backends.local.arrow_files import read_arrow, rows_in_folder
from spark_jobs.backends.local.kafka_ranges import KafkaRanges
from spark_jobs.backends.release import Release, pinned_release
from spark_jobs.history.rebuild_gold import rebuild_gold
from spark_jobs.history.rebuild_slice import PlanFolder, in_spans, rebuild_slice, span_files
from spark_jobs.jobs.bounded_job import planned_slice, report, run_slice_job
from spark_jobs.layers.bronze import RENAMED, complete_source_options
from spark_jobs.layers.gold_layer import GOLD_AT_A_TIME
from spark_jobs.layers.silver_tables import first_unexpired_batch
from spark_jobs.stream.pacing import BatchLimit, newest_files, size_in_bronze
from spark_jobs.tables.data_files import write_parquet
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.failpoints import Step, pass_step
from spark_jobs.tables.spark_files import parquet_files

ANTI_JOIN = 'anti join {other} using ("partition", "offset")'
DIFFERING = f"""
select "partition", "offset" from kafka as k join known as b using ("partition", "offset")
where not ({" and ".join(f'k."{name}" is not distinct from b."{name}"' for name in CONTENT)})
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
        backend = release.backend
        counted = pool.map(lambda t: rebuild_gold(backend, t, silver, folder, published.batch, complete), release.gold)
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
    with release.backend.sql() as sql:
        records, columns = [], ", ".join(f'"{name}"' for name in bronze.spec.data_schema.fieldNames())
        if old.spans:
            _view_bronze(sql, "old", bronze, old, published.batch)
            records.append(f"select {columns} from old")
        if from_kafka.spans:
            offsets = [
                t
                for t in batch_offsets(bronze.spec.path, published.batch)
                if any(_overlap(t, s) for s in from_kafka.spans)
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
    """Raise BronzeDiffers for the first record of view `known` that differs in view `kafka`."""
    differing_record = sql.rows(DIFFERING)
    if differing_record:
        raise BronzeDiffers(table, *differing_record[0])


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


def _overlap(offsets: BatchOffsets, span: Span) -> bool:
    return offsets.partition == span.partition and offsets.start < span.end and span.start < offsets.end


if __name__ == "__main__":
    sys.exit(run_slice_job(sys.argv[1:], rebuild))
