"""What a session needs for tables that Spark writes: options of delta-spark, log stores, and what it refuses.

Other values lose or double rows, or make tables that other readers refuse, so the running session is verified too.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from include.ground.errors import Terminal
from include.ground.object_store import find_store
from include.ground.settings import Settings
from spark_jobs.contract.java_function import give_to_driver

LOG_STORES = {"file": "LinkLogStore", "s3a": "ConditionalS3LogStore"}
"""By scheme: Java classes that create a version only if it is free. delta-storage has those of HDFS, abfs and gs."""
GUARDED_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    **{f"spark.delta.logStore.{scheme}.impl": f"headrace.{name}" for scheme, name in LOG_STORES.items()},
    # A table with one of these is not read, or not maintained, by the other readers.
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "false",
    "spark.databricks.delta.properties.defaults.checkpointPolicy": "classic",
}
FORBIDDEN = (
    "spark.databricks.delta.write.txnAppId",
    "spark.databricks.delta.write.txnVersion",
    "spark.databricks.delta.commitInfo.userMetadata",
    # Transactions that are forgotten commit twice.
    "spark.databricks.delta.properties.defaults.setTransactionRetentionDuration",
)
TUNED_DELTA = {
    # The default of 50 tasks for each reconstruction of a log's state takes nine times the CPU of a small commit.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Nobody verifies it, and a rollback of a log would leave it.
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    # The source of a MERGE is held already, and computed again from the same files if a block is lost.
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.autoCompact.enabled": "false",
    "spark.databricks.delta.optimizeWrite.enabled": "false",
    # A task has a file of each partition open, instead of sorting its rows by partition.
    "spark.sql.maxConcurrentOutputFileWriters": "4",
}


UNSIGNED = "AWS4UnsignedPayloadSignerType"
"""Over plain HTTP a signature of the payload is refused by some stores."""


class UnsafeDelta(Terminal):
    """The session has a value of delta-spark's settings with which commits are lost or doubled."""

    def __init__(self, key: str, value: str | None, needed: str) -> None:
        super().__init__(f"Spark runs with {key}={value}, and needs {needed}; nothing was read", "headrace doctor")
        self.key = key


def delta_options() -> dict[str, str]:
    """Return the options of a session whose tables Spark writes."""
    return {**TUNED_DELTA, **GUARDED_DELTA}


def store_options(settings: Settings) -> dict[str, str]:
    """Return Hadoop's options for the store where tables lie, none where they lie here. Raises PasswordUnreadable."""
    store = find_store(settings) if settings.stores_tables else None
    if store is None:
        return {}
    known = {name.removeprefix("aws_"): value for name, value in store.delta_options.items()}
    is_plain, endpoint = known["allow_http"] == "true", known.get("endpoint")
    # A buffer on the disk needs Hadoop's own local file system, which starts processes.
    options = {"endpoint.region": known["region"], "path.style.access": "true", "fast.upload.buffer": "bytebuffer"}
    options |= {"connection.ssl.enabled": "false", "signing-algorithm": UNSIGNED} if is_plain else {}
    options |= {"endpoint": endpoint} if endpoint else {}
    if "access_key_id" in known:
        options |= {"access.key": known["access_key_id"], "secret.key": known["secret_access_key"]}
        options |= {"aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"}
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in options.items()}


def require_delta(spark: SparkSession) -> None:
    """Give the driver its log stores; raise UnsafeDelta unless the session writes tables safely."""
    configured = spark.sparkContext.getConf()
    for key, needed in GUARDED_DELTA.items():
        if configured.get(key) != needed:
            raise UnsafeDelta(key, configured.get(key), needed)
    for key in FORBIDDEN:
        if (value := spark.conf.get(key, None)) is not None:
            raise UnsafeDelta(key, value, "none")
    for name in LOG_STORES.values():
        give_to_driver(spark.sparkContext, Path(__file__).with_name(f"{name}.java"))
