"""Where a session computes: threads of this process, or executors of a cluster (adr-0009)."""

from __future__ import annotations

import os
import shutil
import time
import zipfile
from collections.abc import Sequence
from getpass import getuser
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from pyspark.sql import SparkSession

from include.ground.errors import Transient
from include.ground.java import packaged_home
from include.ground.ports import EXECUTOR_SECONDS, YARN, HadoopUnknown, hadoop_properties
from include.ground.settings import CLONE, Settings

LOOPBACK = "127.0.0.1"
PACKAGES = ("include", "spark_jobs")
"""What Python functions of a dataset's silver.py may import."""
SMALLEST_DATE = (1980, 1, 1, 0, 0, 0)


class NoExecutors(Transient):
    """The cluster has given no executor: its cores or memory are taken, or no worker is there."""

    def __init__(self, settings: Settings) -> None:
        wanted = f"{settings.executor_cores} cores and {settings.executor_memory}"
        super().__init__(
            f"{settings.spark_master} has given no executor of {wanted} within {EXECUTOR_SECONDS:.0f} s; nothing was"
            " read. Other drivers hold its cores, at most spark.cores.max each, or no worker is there",
            "start another worker, or set spark.cores.max of HEADRACE_SPARK_CONF lower and restart the streams",
        )


def spark_master(settings: Settings) -> str:
    """Return Spark's name for where a session computes."""
    return settings.spark_master or f"local[{settings.driver_cores}]"


def master_options(settings: Settings, jars: Sequence[Path], jvm_flags: str) -> dict[str, str]:
    """Return the options of a session for its master, with the given ones (HEADRACE_SPARK_CONF).

    `jars` and `jvm_flags` are what executors need as drivers do.
    """
    if not settings.spark_master:
        return {**settings.spark_conf, "spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return {
        "spark.cores.max": str(settings.spark_cores),
        # YARN and Kubernetes count executors instead.
        "spark.executor.instances": str(settings.spark_cores // settings.executor_cores),
        "spark.executor.cores": str(settings.executor_cores),
        "spark.executor.memory": settings.executor_memory,
        "spark.executor.extraJavaOptions": jvm_flags,
        # Times of Python functions are those of the process's zone, and a worker has its own.
        "spark.executorEnv.TZ": "UTC",
        # Executors fetch the jars from the driver: a worker is a plain Spark of the same version.
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.sql.shuffle.partitions": str(max(2, settings.spark_cores)),
        # With version 2 the files of a task that an executor did not complete would stay among the results.
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
        **(yarn_options() if settings.spark_master == YARN else {}),
        **settings.spark_conf,
    }


def yarn_options() -> dict[str, str]:
    """Return what YARN needs besides: a folder of the cluster's file system for jars and code. Raises HadoopUnknown."""
    file_system = hadoop_properties("core-site.xml").get("fs.defaultFS")
    if file_system is None:
        raise HadoopUnknown("core-site.xml does not name the cluster's file system, fs.defaultFS")
    return {"spark.yarn.stagingDir": f"{file_system.rstrip('/')}/user/{getuser()}"}


def prepare_environment(settings: Settings, python: str) -> None:
    """Set what PySpark reads from the environment; `python` is this process's."""
    os.environ.pop("SPARK_HOME", None)
    os.environ["PYSPARK_PYTHON"] = python
    if home := packaged_home():
        os.environ.setdefault("JAVA_HOME", home)
    if not settings.spark_master:
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    else:
        os.environ["PYSPARK_PYTHON"] = settings.spark_conf.get("spark.pyspark.python", python)


def require_executor(settings: Settings, spark: SparkSession) -> None:
    """Wait for the session's first executor; end the session and raise NoExecutors when there is none in time.

    Spark itself waits without end, with a line in its log.
    """
    end, context = time.monotonic() + EXECUTOR_SECONDS, spark.sparkContext._jsc.sc()
    # The driver is one of them.
    while context.getExecutorMemoryStatus().size() < 2:
        if time.monotonic() > end:
            spark.stop()
            raise NoExecutors(settings)
        time.sleep(0.1)


def require_shared_folder(settings: Settings, spark: SparkSession) -> None:
    """Raise WrittenRowsMissing unless this host sees what executors write: the tables that they write name their files,
    which no other host would find.
    """
    folder = settings.state / "spark" / f"shared-{uuid4().hex}"
    # Imported late: a driver begins its session before its modules.
    from spark_jobs.tables.spark_files import write_files

    try:
        write_files(spark.range(settings.spark_cores, numPartitions=settings.spark_cores), folder, "overwrite")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def code_archive(folder: Path) -> Path:
    """Return an archive of our packages below `folder`, named by its content; written unless it is there."""
    paths = [path for package in PACKAGES for path in sorted((CLONE / package).rglob("*.py"))]
    sources = {str(path.relative_to(CLONE)): path.read_bytes() for path in paths}
    content = sha256(b"".join(name.encode() + text for name, text in sources.items()))
    archive = folder / f"code-{content.hexdigest()[:16]}.zip"
    if not archive.exists():
        new = folder / f"{uuid4().hex}.zip"
        with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as opened:
            for name, text in sources.items():
                opened.writestr(zipfile.ZipInfo(name, SMALLEST_DATE), text)
        new.replace(archive)
    return archive
