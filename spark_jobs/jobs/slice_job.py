"""The rebuild job: a slice of a dataset's history done again with the release that readers see (DESIGN §6).

Reads: bronze, and Kafka where the plan says so; the tables as published. Writes: the plan's folder of rows alone.
Guarantee: what production has, and what the same code gives now, of the same records at the same batch.
After a crash: started again it begins anew; readers and tables saw nothing of it.
Does not: compare for people, or change a table.

Usage: rebuild.py DATASET PLAN. Prints one JSON object a line: what it is at, and at the end `built`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.catalog.dataset import released_dataset
from include.catalog.history_slice import BRONZE, KAFKA, Slice, Span, parsed_slice
from include.errors import Terminal
from include.paths import patch_path, plan_path
from include.reading.bronze_ranges import BatchOffsets, batch_offsets
from include.reading.publication import Publication, read_publication
from include.settings import Settings, reject_unsafe
from include.state.atomic_files import write_atomically
from include.state.broker_address import bootstrap_servers
from spark_jobs.engine.rebuild_gold import rebuild_gold
from spark_jobs.engine.rebuild_slice import PlanFolder, in_spans, rebuild_slice, span_files
from spark_jobs.engine.spark_session import open_session
from spark_jobs.engine.status_reporter import report
from spark_jobs.jobs.bounded_job import run_job
from spark_jobs.layers.gold_layer import GOLD_AT_A_TIME
from spark_jobs.layers.release_tables import Release, pinned_release
from spark_jobs.storage.delta_table import Table
from spark_jobs.storage.duckdb_session import DuckSession, duckdb_session, parquet_files, rows_in_folder, write_folder
from spark_jobs.storage.failpoints import Step, pass_step

COMPARED = ("key", "value", "timestamp", "timestamp_type", "headers")
NOT_IN = 'anti join {other} using ("partition", "offset")'
STRANGE = f"""
select "partition", "offset" from kafka as k join known as b using ("partition", "offset")
where {" or ".join(f'k."{name}" is distinct from b."{name}"' for name in COMPARED)}
order by all limit 1
"""


class BronzeDiffers(Terminal):
    """A record is another one in bronze than in Kafka; a plan never overwrites bronze."""

    def __init__(self, table: str, partition: int, offset: int) -> None:
        super().__init__(
            f"{table}: partition {partition} offset {offset} is not the record that Kafka has; nothing was built",
            "headrace audit",
        )
        self.table, self.partition, self.offset = table, partition, offset


class OtherRelease(Terminal):
    """Readers see another release than the one that the plan is about."""

    def __init__(self, plan: str, planned: str, seen: str) -> None:
        super().__init__(
            f"plan {plan} is about release {planned}, readers see {seen} now; nothing was built",
            f"headrace plan cancel {plan}, and plan again",
        )
        self.plan, self.published = plan, seen


def rebuild(settings: Settings, spark: SparkSession, dataset: str, plan: str) -> dict[str, Any]:
    """Do the plan's slice again; return the facts of it: batch, records, what differs in which table."""
    read_at_ms, began = int(time.time() * 1000), time.monotonic()
    said = json.loads((plan_path(settings, plan) / "plan.json").read_text("utf-8"))
    wanted, seen = parsed_slice(said["slice"]), read_publication(settings, dataset)
    if seen.release != said["release"]:
        raise OtherRelease(plan, said["release"], seen.release)
    folder = PlanFolder(patch_path(settings, dataset, seen.release, plan))
    shutil.rmtree(folder.path, ignore_errors=True)
    versions = {name: table.version for name, table in seen.tables.items()}
    declared = released_dataset(settings, dataset, seen.release)
    release = pinned_release(spark, settings, declared, versions, wanted.reference)
    records = slice_records(settings, release, wanted, seen, folder)
    steps = 1 + len(release.gold)
    report(at="silver and rejected", done=0, of=steps)
    done = rebuild_slice(release, records, wanted, folder)
    pass_step(Step.SLICE_REDONE)
    differing = dict(done.differing)
    with ThreadPoolExecutor(GOLD_AT_A_TIME, "gold") as pool:
        counted = pool.map(lambda t: rebuild_gold(t, release.writer.silver, folder, seen.batch), release.gold)
        for number, (target, count) in enumerate(zip(release.gold, counted, strict=True), start=1):
            differing[target.table.spec.name] = count
            report(at=target.table.spec.name, done=number, of=steps)
    built = {
        "attempt": uuid4().hex,
        "read_at_ms": read_at_ms,
        "release": seen.release,
        "batch": seen.batch,
        "records": done.core,
        "kin": done.closure,
        "filled": rows_in_folder(folder.rows("added", release.writer.bronze.spec.name)),
        "differing": differing,
        "decided_until": done.decided_until,
        "seconds": round(time.monotonic() - began, 1),
    }
    shutil.rmtree(folder.path / "_staging", ignore_errors=True)
    write_atomically(folder.path / "built.json", json.dumps(built))
    return built


def slice_records(
    settings: Settings, release: Release, wanted: Slice, seen: Publication, folder: PlanFolder
) -> list[Path]:
    """Return files with the slice's records, each from where the plan says; what bronze lacks is kept."""
    bronze, old, fresh = release.writer.bronze, Slice(wanted.of(BRONZE)), Slice(wanted.of(KAFKA))
    place = folder.staging("records")
    with duckdb_session() as duck:
        records = []
        if old.spans:
            _view_bronze(duck, "old", bronze, old, seen.batch)
            records.append("select * from old")
        if fresh.spans:
            tiles = [t for t in batch_offsets(bronze.spec.path, seen.batch) if any(_meet(t, s) for s in fresh.spans)]
            write_folder(kafka_records(settings, release, fresh, tiles), folder.staging("kafka"))
            duck.view_folder("kafka", folder.staging("kafka"), bronze.spec.data_schema)
            _view_bronze(duck, "known", bronze, fresh, seen.batch)
            _refuse_other_records(duck, bronze.spec.name)
            # What Kafka has compacted away is still in bronze, and was judged once.
            records += ["select * from kafka", f"select * from known {NOT_IN.format(other='kafka')}"]
        missing = f"kafka {NOT_IN.format(other='known')}" if fresh.spans else "old where false"
        duck.save(f"select * from {missing}", folder.rows("added", bronze.spec.name))
        duck.save(" union all ".join(records), place)
    return parquet_files(place)


def _view_bronze(duck: DuckSession, name: str, bronze: Table, wanted: Slice, batch: int) -> None:
    files = span_files(bronze, wanted, "partition", "offset")
    duck.view_table(f"{name}_files", bronze, files)
    inside = in_spans(wanted, f"{name}_files", "partition", "offset")
    duck.view_query(name, f"select * from ({inside}) where _batch_id <= {batch}")


def _refuse_other_records(duck: DuckSession, table: str) -> None:
    """Raise BronzeDiffers for the first record of view `known` that is another one in view `kafka`."""
    strange = duck.rows(STRANGE)
    if strange:
        raise BronzeDiffers(table, *strange[0])


def kafka_records(settings: Settings, release: Release, wanted: Slice, tiles: Sequence[BatchOffsets]) -> DataFrame:
    """Return the records that Kafka has in the spans, with the batch that each offset belongs to."""
    spark, bronze = release.writer.spark, release.writer.bronze
    topic = release.dataset.pipeline.topic
    parts = [_read_kafka(settings, spark, topic, spans) for spans in _one_a_partition(wanted.spans)]
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part)
    known = [(tile.batch, tile.partition, tile.start, tile.end) for tile in tiles]
    batches = spark.createDataFrame(known, "_batch_id long, _part int, _start long, _end long")
    inside = "partition = _part and offset >= _start and offset < _end"
    placed = rows.join(F.broadcast(batches), F.expr(inside))
    return placed.withColumnRenamed("timestampType", "timestamp_type").select(*bronze.spec.data_schema.fieldNames())


def _one_a_partition(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """The source takes one range a partition: yield the spans in as many groups as that needs."""
    waiting = list(spans)
    while waiting:
        group = {span.partition: span for span in reversed(waiting)}
        yield list(group.values())
        waiting = [span for span in waiting if group[span.partition] is not span]


def _read_kafka(settings: Settings, spark: SparkSession, topic: str, spans: Sequence[Span]) -> DataFrame:
    options = {
        **settings.kafka_options,
        "kafka.bootstrap.servers": bootstrap_servers(settings),
        "assign": json.dumps({topic: [span.partition for span in spans]}),
        "startingOffsets": json.dumps({topic: {str(span.partition): span.start for span in spans}}),
        "endingOffsets": json.dumps({topic: {str(span.partition): span.end for span in spans}}),
        "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
    }
    options.pop("minOffsetsPerTrigger", None)
    for key, value in options.items():
        reject_unsafe(key, value)
    return spark.read.format("kafka").options(**options).load()


def _meet(tile: BatchOffsets, span: Span) -> bool:
    return tile.partition == span.partition and tile.start < span.end and span.start < tile.end


def main(arguments: Sequence[str]) -> int:
    """Do it; return 0 done, 1 failed, 2 refused."""
    dataset, plan = arguments

    def work(settings: Settings) -> None:
        report(built=rebuild(settings, open_session(settings, f"headrace rebuild {plan}"), dataset, plan))

    return run_job("rebuild", work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
