"""The one way to a Spark session: settings that the guarantees need, and those that were measured to pay."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from include.errors import Terminal
from include.settings import CLONE, Settings, reject_unsafe

# Wrong values here lose, double or misread records, so they are checked again on the running session.
GUARDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.streaming.checkpoint.verifyMetadataExists.enabled": "true",
}
LOGGING = CLONE / "infra" / "spark" / "log4j2.properties"
CHECKPOINT_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
# A young driver spends more on the optimising compiler than on records. Five times its thresholds leave it what is
# really hot: a year of flights is in gold in 99 s instead of 121 (2 cores; twenty times: 107; never: 131).
HOT = 5
JVM_FLAGS = (
    "-XX:+UseParallelGC -Duser.timezone=UTC -Djava.net.preferIPv4Stack=true "
    f"-XX:Tier4InvocationThreshold={HOT * 5000} -XX:Tier4MinInvocationThreshold={HOT * 600} "
    f"-XX:Tier4CompileThreshold={HOT * 15000} -XX:Tier4BackEdgeThreshold={HOT * 40000}"
)
TUNED = {
    # The JVM never compiles a method over 8,000 bytes, and a contract's verdict in one method is larger: split it.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # A run of flights has 170 generated classes; with the default of 100 each would be compiled anew in every run.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # A group in a hash map for each grain of a batch; above the default of 128 groups Spark sorts instead.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "500000",
    # The local file system with checksums forks a chmod twice a file and writes a side file that nobody reads.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "snappy",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
    "spark.sql.streaming.minBatchesToRetain": "100",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.maxMetadataStringLength": "100",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
}


class JarsMissing(Terminal):
    """The Spark jars were not fetched; `folder` is where they belong."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"there are no jars in {folder}; Spark was not started", "make setup")
        self.folder = folder


class GuardedSetting(Terminal):
    """The session runs with a value that endangers a guarantee; `key` and `value` as found."""

    def __init__(self, key: str, value: str | None) -> None:
        super().__init__(f"Spark runs with {key}={value}, needs {GUARDED[key]}; nothing was read", "headrace doctor")
        self.key = key


def spark_jars(settings: Settings) -> list[Path]:
    """Return the verified jars for Spark; JarsMissing when there are none."""
    jars = sorted((settings.jars / "spark").glob("*.jar"))
    if not jars:
        raise JarsMissing(settings.jars / "spark")
    return jars


def open_session(settings: Settings, name: str, *, delta: bool = False) -> SparkSession:
    """Start (or return) the process's local session; with `delta`, delta-spark's SQL is there too."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.pop("SPARK_HOME", None)
    builder = SparkSession.Builder().appName(name).master(f"local[{settings.driver_cores}]")
    options = {
        **TUNED,
        **GUARDED,
        **settings.spark_conf,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in spark_jars(settings)),
        "spark.driver.extraJavaOptions": _jvm_flags(settings),
        "spark.local.dir": str(settings.state / "spark"),
    }
    for key, value in {**options, **(_delta_options() if delta else {})}.items():
        reject_unsafe(key, value)
        builder = builder.config(key, value)
    (settings.state / "spark").mkdir(parents=True, exist_ok=True)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    verify_guarded(session)
    return session


def verify_guarded(session: SparkSession) -> None:
    """Raise GuardedSetting unless the running session has the values that the guarantees need."""
    for key, wanted in GUARDED.items():
        value = session.conf.get(key)
        if str(value).lower() != wanted.lower():
            raise GuardedSetting(key, value)


def _jvm_flags(settings: Settings) -> str:
    logging = f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"
    archive = class_archive(settings)
    shared = [f"'-XX:SharedArchiveFile={archive}'", "-Xlog:cds*=off"] if archive.is_file() else []
    return " ".join([JVM_FLAGS, logging, *shared, settings.driver_jvm]).strip()


def class_archive(settings: Settings) -> Path:
    """Return where `make setup` keeps the loaded classes of a driver; a JVM starts with them in half the time."""
    return settings.jars / "spark.jsa"


def _delta_options() -> dict[str, str]:
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
