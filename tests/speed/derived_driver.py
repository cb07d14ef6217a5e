"""What a run of a derived dataset costs the driver when executors do the rows: make bench-derived.

A standalone cluster of one worker; runs touch few grains and many in turn. The driver knows grains by counts and
footers, so its CPU and heap must hardly differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from held_lease import HeldLease
from run_cost import Meter
from small_release import Record, SmallRelease, small_release
from standalone_cluster import standalone_cluster
from test_derived_halts import CONTRACT, FITTING, PIPELINE, SILVER, write

from include.declare.derived_dataset import snapshot_derived
from include.ground.settings import Settings
from spark_jobs.backends.spark_session import open_session
from spark_jobs.stream.derived import DerivedRelease

START = datetime(2024, 1, 1, tzinfo=UTC)
QUERY = "select date_trunc('second', at) as second, count(*) as taps, sum(n) as total from taps group by 1"
GOLD = {
    "query": "gold/seconds.sql",
    "grain": ["second"],
    "touched_by": {"taps": {"second": "date_trunc('second', at)"}},
}
DERIVED = {"sources": {"taps": "silver.taps"}, "gold": {"taps_seconds": GOLD}}


def tap(number: int) -> Record:
    """Return a tap of a second that no other has."""
    at = START + timedelta(seconds=number)
    return Record(json.dumps({"id": f"t{number}", "at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "n": number % 100}).encode())


def measured(source: SmallRelease, release: DerivedRelease, sizes: list[int], meter: Meter) -> None:
    """Print seconds, CPU seconds and heap of a run for each of these numbers of grains."""
    runtime, sent = source.spark._jvm.java.lang.Runtime.getRuntime(), 0  # type: ignore[union-attr]
    print(f"{'grains':>8} {'seconds':>8} {'JVM CPU s':>10} {'Python CPU s':>13} {'heap MB':>8}")
    for size in sizes:
        source.take([tap(number) for number in range(sent, sent + size)])
        sent, run, since = sent + size, release.next_run(), meter.now()
        assert run is not None
        release.execute(run)
        wall, jvm, python = (now - before for now, before in zip(meter.now(), since, strict=True))
        for _ in range(2):
            runtime.gc()
            time.sleep(0.3)
        heap = (runtime.totalMemory() - runtime.freeMemory()) / 2**20
        print(f"{size:8,} {wall:8.2f} {jvm:10.2f} {python:13.2f} {heap:8.0f}", flush=True)


def main() -> int:
    """Print a line for each run; the first two warm the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", type=int, default=500)
    parser.add_argument("--many", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=4)
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="headrace derived driver ") as name,
        standalone_cluster(Path(name)) as cluster,
    ):
        cluster.add_worker()
        given = cluster.settings(1)
        master, conf = given["HEADRACE_SPARK_MASTER"], json.loads(given["HEADRACE_SPARK_CONF"])
        folder = Path(name) / "platform"
        settings = Settings(
            state=folder / "state",
            datasets=folder / "datasets",
            spark_master=master,
            spark_conf=conf,
            driver_memory="1g",
        )
        taps = {"contract.yaml": CONTRACT, "pipeline.yaml": PIPELINE, "silver.py": SILVER % FITTING}
        write(settings.datasets / "taps", taps)
        queries = {"derived.yaml": json.dumps(DERIVED), "gold/seconds.sql": QUERY}
        write(settings.datasets / "taps_seconds", queries)
        spark = open_session(settings, "derived driver")
        source = small_release(spark, settings, "taps", settings.datasets / "taps")
        release = DerivedRelease(settings, snapshot_derived(settings, "taps_seconds"), spark, HeldLease())
        meter = Meter(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]
        measured(source, release, [chosen.few, chosen.many] * (1 + chosen.runs), meter)
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
