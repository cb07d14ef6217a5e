"""The peer that declares its tables: Spark Declarative Pipelines, as `spark-pipelines run` executes them.

Each run is a new process, so there is no warm-up; what is measured begins when its session is open and the tables are
declared. Settings for tables in Delta go into `spark-defaults.conf`: the pipeline's own configuration comes too late.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import yaml

from benchmarks.peers.peer_job import DONE, READY, PeerJob, read_job

PEER = "BENCH_PEER_JOB"
STARTING, COMPLETED = "Starting run...", "Run is COMPLETED"
TABLES = Path(__file__).with_name("pipeline_tables.py")
CLONE = Path(__file__).resolve().parents[3]
TUNED = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.sources.default": "delta",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # The state of duplicates: RocksDB keeps it out of the heap.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.NakedLocalFileSystem",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -Duser.timezone=UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def write_project(job: PeerJob, folder: Path) -> Path:
    """Write the pipeline's specification, tables and settings; return the specification."""
    tables = folder / "transformations"
    tables.mkdir(parents=True)
    shutil.copy(TABLES, tables)
    jars = os.pathsep.join(str(jar) for jar in sorted(Path(job.jars).glob("*.jar")))
    own = {
        "spark.driver.memory": job.memory,
        "spark.driver.extraClassPath": jars,
        "spark.local.dir": job.folder,
        "spark.sql.warehouse.dir": (Path(job.folder) / "tables").as_uri(),
    }
    lines = "".join(f"{key} {value}\n" for key, value in (TUNED | own).items())
    (folder / "spark-defaults.conf").write_text(lines, "utf-8")
    spec = {"name": "peer", "storage": (folder / "storage").as_uri(), "database": "default"}
    path = folder / "spark-pipeline.yml"
    path.write_text(yaml.safe_dump({**spec, "libraries": [{"glob": {"include": "transformations/**"}}]}), "utf-8")
    return path


def main() -> int:
    """Run the pipeline of the job that is the argument; report when it begins and when it has ended."""
    job = read_job(sys.argv[1])
    spec = write_project(job, Path(job.folder) / "project")
    home = Path(pyspark.__file__).parent
    process = subprocess.Popen(
        [str(home / "bin" / "spark-pipelines"), "run", "--spec", str(spec), "--remote", f"local[{job.cores}]"],
        cwd=spec.parent,
        env={
            **os.environ,
            **{PEER: sys.argv[1], "SPARK_HOME": str(home), "SPARK_CONF_DIR": str(spec.parent)},
            **{"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(CLONE), "SPARK_LOCAL_IP": "127.0.0.1"},
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", file=sys.stderr)
        if STARTING in line:
            print(READY, flush=True)
        elif COMPLETED in line:
            # Before the processes end: their CPU time would count for this one.
            print(DONE, flush=True)
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
