"""How long a driver takes to its first publication, next to the least that Spark takes: make bench-start.

The least is a job that reads the same 2,000 records and writes some of their fields as Parquet, once, without a
contract, duplicates, gold or Delta; its session is the driver's. Both in turn, with a new broker and state each round.

Usage: start_speed.py [flights|ad_events] [--rounds N]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.session import BenchSession, cold_session, start_driver
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.cli.main import INTERRUPTED
from include.ground.settings import load_settings
from spark_jobs.backends.spark_session import open_session

BARE = "bare"
WRITTEN = "written"
ENDED = "ended"
FIELDS = {
    "flights": "event_id string, kind string, carrier string, origin string, dest string, occurred_at string",
    "ad_events": "user_id string, page_id string, ad_id string, ad_type string, event_type string, event_time string",
}
"""Six fields of a record of each dataset."""


def main(dataset: str, rounds: int) -> None:
    """Print the seconds of each round and the ratio of the medians."""
    pairs = list(measured(dataset, rounds))
    bare, driver = (median(column) for column in zip(*pairs, strict=True))
    print(f"medians: {driver:.1f} s, of it Spark alone {bare:.1f} s; ratio {driver / bare:.2f}")


def measured(dataset: str, rounds: int) -> Iterator[tuple[float, float]]:
    """Yield the seconds of the bare job and of the driver."""
    for number in range(1, rounds + 1):
        with cold_session(dataset, False, lambda line: None) as session:
            pair = bare_seconds(session), start_driver(session)
        print(f"{number} of {rounds}: Spark alone {pair[0]:.1f} s, driver of {dataset} {pair[1]:.1f} s", flush=True)
        yield pair


def bare_seconds(session: BenchSession) -> float:
    """Return the seconds from the bare job's process to its files; wait for the end of its JVM, which takes longer."""
    with tempfile.TemporaryDirectory(prefix="headrace-start-") as folder:
        fields = FIELDS[session.dataset]
        command = [sys.executable, __file__, BARE, session.bootstrap, session.target.topic, fields, folder]
        start = time.time()
        # The JVM keeps the pipe open until it ends.
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if ended.returncode:
            sys.exit(ended.stdout)
        assert any((Path(folder) / WRITTEN).glob("*.parquet"))
        return float((Path(folder) / ENDED).read_text()) - start


def write_once(bootstrap: str, topic: str, fields: str, folder: str) -> None:
    """Write the topic's records as Parquet, in one batch of a stream, and note the time."""
    spark = open_session(load_settings(), BARE)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**options).load()
    parsed = records.select(F.from_json(F.col("value").cast("string"), fields).alias("record"), "partition", "offset")

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.parquet(f"{folder}/{WRITTEN}")
        (Path(folder) / ENDED).write_text(str(time.time()))

    query = parsed.select("record.*", "partition", "offset").writeStream.foreachBatch(write)
    query.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start().awaitTermination()


def count(text: str) -> int:
    """Return a number of rounds; an error of argparse unless it is at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on; nothing was measured")
    return int(text)


def arguments() -> argparse.Namespace:
    """Return the dataset and the number of rounds of the command line; exit with the usage for others."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("dataset", nargs="?", choices=FIELDS, default="flights")
    parser.add_argument("--rounds", type=count, metavar="N", default=5)
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == [BARE]:
        write_once(*sys.argv[2:])
    else:
        given = arguments()
        try:
            main(given.dataset, given.rounds)
        except KeyboardInterrupt:
            print("interrupted; broker, driver and state folder are removed", file=sys.stderr)
            sys.exit(INTERRUPTED)
