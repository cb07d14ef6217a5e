"""The peer in Flink SQL: a bounded job in batch mode from Kafka to Parquet files; there is no Delta sink for Flink 2.

A run reads its offsets, and no run continues another one: duplicates are found within the run, and windows are counted
in the run. In streaming mode silver's look-up of the campaign would have to keep every event, and a window could be
written only once. Exactly once: Flink's sink commits its files at the end of the job.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

from benchmarks.peers.peer_job import (
    FIELDS,
    LONGEST_ADDRESS,
    PATTERNS,
    VALUES,
    PeerJob,
    TopicSpan,
    drain_twice,
    read_job,
)

COLUMNS = ", ".join(f"{name} STRING" for name in FIELDS)
TIMED = "occurred_at TIMESTAMP_LTZ(3), campaign_id STRING"
WINDOW = 10_000
"""Milliseconds."""


def open_environment(job: PeerJob) -> TableEnvironment:
    """Return an environment for this machine, with the topic's connector and Parquet."""
    tables = TableEnvironment.create(EnvironmentSettings.in_batch_mode())
    jars = sorted(Path(job.jars).with_name("flink").glob("*.jar"))
    tuned = {
        "pipeline.jars": ";".join(jar.as_uri() for jar in jars),
        "parallelism.default": str(job.cores),
        "taskmanager.numberOfTaskSlots": str(job.cores),
        # Sorting and hashing use managed memory; the default of a local cluster is 128 MB.
        "taskmanager.memory.managed.size": "768m",
        "table.local-time-zone": "UTC",
        # The tables of silver and gold share everything up to the campaign.
        "table.optimizer.reuse-sub-plan-enabled": "true",
    }
    for key, value in tuned.items():
        tables.get_config().set(key, value)
    return tables


def drain(tables: TableEnvironment, job: PeerJob, span: TopicSpan, folder: Path) -> None:
    """Read the span to its end into the tables of the folder."""
    for name, definition in definitions(job, span, folder).items():
        kind = "TABLE" if "WITH (" in definition else "VIEW"
        tables.execute_sql(f"DROP TEMPORARY {kind} IF EXISTS {name}")
        tables.execute_sql(f"CREATE TEMPORARY {kind} {name} {definition}")
    both = tables.create_statement_set()
    both.add_insert_sql(f"INSERT INTO silver SELECT {', '.join(FIELDS)}, occurred_at, campaign_id FROM enriched")
    both.add_insert_sql(
        f"INSERT INTO gold SELECT campaign_id, TO_TIMESTAMP_LTZ(millis - MOD(millis, {WINDOW}), 3), COUNT(*) "
        f"FROM enriched WHERE event_type = 'view' GROUP BY campaign_id, millis - MOD(millis, {WINDOW})"
    )
    both.execute().wait()


def definitions(job: PeerJob, span: TopicSpan, folder: Path) -> dict[str, str]:
    """Return what follows the name of each table and view; a later one may read an earlier one."""
    return {
        "topic": f"({COLUMNS}) {options(kafka_options(job, span))}",
        "ads": f"(ad_id STRING, campaign_id STRING) {options(ads_options(job))}",
        "silver": f"({COLUMNS}, {TIMED}) {options(parquet(folder / 'silver'))}",
        "gold": f"(campaign_id STRING, `since` TIMESTAMP_LTZ(3), `views` BIGINT) {options(parquet(folder / 'gold'))}",
        "valid": f"AS SELECT *, TRY_CAST(event_time AS BIGINT) AS millis FROM topic WHERE {is_valid()}",
        "numbered": "AS SELECT *, ROW_NUMBER() OVER (PARTITION BY event_time ORDER BY event_time) AS nth FROM valid",
        "enriched": "AS SELECT /*+ BROADCAST(ads) */ numbered.*, TO_TIMESTAMP_LTZ(millis, 3) AS occurred_at, "
        "campaign_id FROM numbered LEFT JOIN ads ON numbered.ad_id = ads.ad_id WHERE nth = 1",
    }


def is_valid() -> str:
    """Return the condition that an event keeps the contract."""
    rules = [f"REGEXP({name}, '{pattern}')" for name, pattern in PATTERNS.items()]
    rules += [f"{name} IN ({', '.join(map(repr, values))})" for name, values in VALUES.items()]
    return " AND ".join([*rules, f"CHAR_LENGTH(ip_address) <= {LONGEST_ADDRESS}"])


def kafka_options(job: PeerJob, span: TopicSpan) -> dict[str, str]:
    """Return the options of the topic, bounded to the span."""
    return {
        "connector": "kafka",
        "topic": span.topic,
        "properties.bootstrap.servers": job.bootstrap,
        "properties.group.id": "peer",
        "properties.isolation.level": "read_committed",
        "scan.startup.mode": "specific-offsets",
        "scan.startup.specific-offsets": offsets(span.start),
        "scan.bounded.mode": "specific-offsets",
        "scan.bounded.specific-offsets": offsets(span.end),
        "format": "json",
        "json.ignore-parse-errors": "true",
    }


def offsets(by_partition: dict[int, int]) -> str:
    """Return offsets as Flink writes them."""
    return ";".join(f"partition:{partition},offset:{offset}" for partition, offset in by_partition.items())


def ads_options(job: PeerJob) -> dict[str, str]:
    """Return the options of the file of ads. Its header becomes an ad that no event has."""
    return {"connector": "filesystem", "path": Path(job.ads).as_uri(), "format": "csv"}


def parquet(path: Path) -> dict[str, str]:
    """Return the options of a table of Parquet files."""
    return {
        "connector": "filesystem",
        "path": path.as_uri(),
        "format": "parquet",
        "parquet.compression": "SNAPPY",
        "parquet.utc-timezone": "true",
        "parquet.write.int64.timestamp": "true",
        "parquet.timestamp.time.unit": "micros",
    }


def options(values: dict[str, str]) -> str:
    """Return the options of a table as SQL."""
    pairs = ", ".join(f"'{key}' = '{value}'" for key, value in values.items())
    return f"WITH ({pairs})"


def main() -> None:
    """Run the job that is the argument."""
    job = read_job(sys.argv[1])
    tables = open_environment(job)
    drain_twice(job, lambda span, folder: drain(tables, job, span, folder))


if __name__ == "__main__":
    main()
