"""The peer without a JVM: confluent-kafka reads, polars parses and counts, delta-rs commits.

Exactly once: silver's commit names the next offset of each partition in its transactions, so a job that was killed
continues there. The windows that a batch touches are counted again from silver and replaced; a start counts all.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import polars as pl
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from benchmarks.peers.peer_job import (
    FIELDS,
    HORIZON_SECONDS,
    LONGEST_ADDRESS,
    PATTERNS,
    VALUES,
    PeerJob,
    TopicSpan,
    drain_twice,
    read_job,
)

BATCH = 500_000
"""Records of a batch: larger ones need more memory and save nothing measurable."""
POLL = 50_000
WINDOW = "10s"
RAW = pl.Struct(dict.fromkeys(FIELDS, pl.String))
CONSUMER = {
    "group.id": "peer",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    # librdkafka fetches ahead; its default of 64 MB a partition is less than a batch.
    "queued.max.messages.kbytes": 256 * 1024,
    "queued.min.messages": 1_000_000,
    "fetch.message.max.bytes": 8 << 20,
}


def drain(job: PeerJob, span: TopicSpan, folder: Path) -> None:
    """Read the span to its end, batch by batch, into the tables of the folder."""
    ads = pl.read_csv(job.ads).select("ad_id", "campaign_id")
    if DeltaTable.is_deltatable(str(folder / "silver")):
        # A job that was killed may have committed silver, and not yet gold.
        write_gold(folder, pl.read_delta(str(folder / "silver")))
    consumer = Consumer({**CONSUMER, "bootstrap.servers": job.bootstrap})
    try:
        consumer.assign([TopicPartition(span.topic, part, at) for part, at in next_offsets(span, folder).items()])
        for messages in batches(consumer, span):
            ends = [transaction(at) for at in consumer.position(consumer.assignment()) if at.offset >= 0]
            write_gold(folder, write_silver(folder / "silver", parsed(messages, ads), ends))
    finally:
        consumer.close()


def transaction(next_one: TopicPartition) -> Transaction:
    """Return the transaction by which silver's commit stores the next offset of a partition."""
    return Transaction(f"{next_one.topic}-{next_one.partition}", next_one.offset)


def next_offsets(span: TopicSpan, folder: Path) -> dict[int, int]:
    """Return where each partition continues: after silver's last commit, else at the start of the span."""
    if not DeltaTable.is_deltatable(str(folder / "silver")):
        return span.start
    table = DeltaTable(folder / "silver")
    return {part: table.transaction_version(f"{span.topic}-{part}") or at for part, at in span.start.items()}


def batches(consumer: Consumer, span: TopicSpan) -> Iterator[list[Message]]:
    """Yield the messages in batches until the end of each partition is reached."""
    open_partitions, batch = set(span.end), list[Message]()
    while open_partitions:
        for message in consumer.consume(POLL, timeout=1.0):
            error = message.error()
            if error is None:
                batch.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(message.partition())
            else:
                raise RuntimeError(error.str())
        if batch and (len(batch) >= BATCH or not open_partitions):
            yield batch
            batch = []


def parsed(messages: list[Message], ads: pl.DataFrame) -> pl.DataFrame:
    """Return the valid events, each once within the batch, with event time and campaign."""
    texts = pl.Series("value", [message.value() for message in messages], pl.Binary).cast(pl.String, strict=False)
    events = pl.DataFrame(texts).select(pl.col("value").str.json_decode(RAW)).unnest("value").filter(is_valid())
    first = events.unique("event_time", keep="first", maintain_order=True)
    occurred_at = pl.from_epoch(pl.col("event_time").cast(pl.Int64), "ms").cast(pl.Datetime("us", "UTC"))
    return first.with_columns(occurred_at=occurred_at).join(ads, "ad_id", "left", maintain_order="left")


def is_valid() -> pl.Expr:
    """Return whether an event keeps the contract."""
    rules = [pl.col(name).str.contains(pattern) for name, pattern in PATTERNS.items()]
    rules += [pl.col(name).is_in(values) for name, values in VALUES.items()]
    return pl.all_horizontal(*rules, pl.col("ip_address").str.len_chars() <= LONGEST_ADDRESS)


def write_silver(path: Path, events: pl.DataFrame, offsets: list[Transaction]) -> pl.DataFrame:
    """Append the events that silver does not hold yet, with the offsets of the batch; return them."""
    if DeltaTable.is_deltatable(str(path)) and events.height:
        oldest = events["occurred_at"].min() - timedelta(seconds=HORIZON_SECONDS)  # type: ignore[operator]
        known = pl.scan_delta(str(path)).filter(pl.col("occurred_at") >= oldest).select("event_time").collect()
        events = events.join(known, "event_time", "anti", maintain_order="left")
    write_deltalake(path, events, mode="append", commit_properties=CommitProperties(app_transactions=offsets))
    return events


def write_gold(folder: Path, new: pl.DataFrame) -> None:
    """Count the views of the windows that hold new events again, from silver, and replace these windows."""
    if not new.height:
        return
    window = pl.col("occurred_at").dt.truncate(WINDOW)
    first, last = new.select(window.min().alias("first"), window.max().alias("last")).row(0)
    touched = pl.scan_delta(str(folder / "silver")).filter(
        pl.col("occurred_at") >= first, pl.col("occurred_at") < last + timedelta(seconds=10)
    )
    views = (
        touched.filter(pl.col("event_type") == "view")
        .group_by("campaign_id", window.alias("since"))
        .agg(views=pl.len())
    )
    rows = views.with_columns(pl.col("views").cast(pl.Int64)).collect()
    path = folder / "gold"
    if not DeltaTable.is_deltatable(str(path)):
        write_deltalake(path, rows)
        return
    predicate = f"since >= '{first.isoformat()}' and since <= '{last.isoformat()}'"
    write_deltalake(path, rows, mode="overwrite", predicate=predicate)


def main() -> None:
    """Run the job that is the argument."""
    job = read_job(sys.argv[1])
    drain_twice(job, lambda span, folder: drain(job, span, folder))


if __name__ == "__main__":
    main()
