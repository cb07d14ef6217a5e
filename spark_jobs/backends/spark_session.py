"""Opens Spark sessions: settings that the guarantees need, and settings whose benefit was measured."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from getpass import getuser
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from py4j.java_gateway import JavaClass, JavaMember, JVMView
from pyspark.sql import SparkSession

from include.ground.durable_files import new_process_folder
from include.ground.errors import Terminal, Transient, holds_secret
from include.ground.java import find_java, packaged_home
from include.ground.ports import EXECUTOR_SECONDS, YARN, HadoopUnknown, hadoop_properties, require_master
from include.ground.settings import CLONE, Settings, reject_unsafe
from spark_jobs.backends.spark.delta_session import delta_options, require_delta, store_options

LOOPBACK = "127.0.0.1"
PACKAGES = ("include", "spark_jobs")
"""What Python functions of a dataset's silver.py may import."""
FETCH_S3A = ".venv/bin/python -m infra.jars.fetch --also s3a"
SMALLEST_DATE = (1980, 1, 1, 0, 0, 0)


def spark_master(settings: Settings) -> str:
    """Return Spark's name for where a session computes."""
    return settings.spark_master or f"local[{settings.driver_cores}]"


def master_options(settings: Settings, jars: Sequence[Path], jvm_flags: str) -> dict[str, str]:
    """Return the options of a session for its master; executors need `jars` and `jvm_flags` as drivers do."""
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
    """Wait for the first executor, as Spark would without end; after a time end the session, raise Transient."""
    end, context = time.monotonic() + EXECUTOR_SECONDS, spark.sparkContext._jsc.sc()
    # The driver is one of them.
    while context.getExecutorMemoryStatus().size() < 2:
        if time.monotonic() > end:
            spark.stop()
            wanted = f"{settings.executor_cores} cores and {settings.executor_memory}"
            raise Transient(
                f"{settings.spark_master} has given no executor of {wanted} within {EXECUTOR_SECONDS:.0f} s; nothing"
                " was read. Other drivers hold its cores, at most spark.cores.max each, or no worker is there",
                "start another worker, or set spark.cores.max of HEADRACE_SPARK_CONF lower and restart the streams",
                code="no-executors",
            )
        time.sleep(0.1)


def require_shared_folder(settings: Settings, spark: SparkSession) -> None:
    """Raise WrittenRowsMissing unless this host sees what executors write: tables name files by their paths."""
    folder = settings.state / "spark" / f"shared-{uuid4().hex}"
    # Imported late: a driver begins its session before its modules.
    from spark_jobs.tables.data_files import write_files

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


# Other values lose, duplicate or misread records, so the running session is verified too.
GUARDED = {
    "spark.sql.session.timeZone": "UTC",
    # A path is one of the state folder, also where the configuration of Hadoop names another file system.
    "spark.hadoop.fs.defaultFS": "file:///",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.streaming.checkpoint.verifyMetadataExists.enabled": "true",
}
LOGGING = CLONE / "infra" / "spark" / "log4j2.properties"
CHECKPOINT_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
# A new driver spends more time in the optimising compiler than on records. Twenty times the default thresholds leave
# only the hottest methods: 4.5 CPU s until the first publication instead of 10 with five times, and 20.4 CPU s of the
# JVM per million flights of a drain after 500,000 instead of 22.8 (sixty times: 24.9); the year takes the same.
HOT = 20
# The default of 21 MB collects all garbage twice while a driver starts: 0.25 s.
METASPACE = "-XX:MetaspaceSize=256m"
JVM_FLAGS = (
    f"-XX:+UseParallelGC {METASPACE} -Duser.timezone=UTC -Djava.net.preferIPv4Stack=true "
    f"-XX:Tier4InvocationThreshold={HOT * 5000} -XX:Tier4MinInvocationThreshold={HOT * 600} "
    f"-XX:Tier4CompileThreshold={HOT * 15000} -XX:Tier4BackEdgeThreshold={HOT * 40000}"
)
TUNED = {
    # The JVM never compiles a method of over 8,000 bytes, and the generated code of a contract is larger: split it.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # A run of flights generates 170 classes; with the default of 100 every run would compile them again.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # A batch touches many grains; above the default of 128 groups Spark sorts instead of hashing.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "500000",
    # Hadoop's own classes start a `chmod` process for each folder and twice for each file (pyspark has no native
    # library): 280 ms of CPU instead of 160 for a write of four partitions. Neither writes checksum files.
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.NakedLocalFileSystem",
    # Each broadcast table, sort and aggregation allocates a page of the heap: 16 MB by default, for some rows.
    "spark.buffer.pageSize": "2m",
    "spark.sql.shuffle.partitions": "2",
    # A file of gold is sorted in memory when it is cut.
    "spark.sql.files.maxRecordsPerFile": "1000000",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "snappy",
    # A task holds one row group in memory, also when it reads: the vectorised batches end with their row group.
    "spark.hadoop.parquet.block.size": str(32 << 20),
    # The default of 100 makes pages of at least 100 records: 30 MB if a record has 300 KB, and a page is copied thrice.
    "spark.hadoop.parquet.page.size.row.check.min": "10",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
    "spark.sql.streaming.minBatchesToRetain": "100",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    # With "true" a Python function directly over files hangs for ever (SPARK-58241).
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.maxMetadataStringLength": "100",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
}


def spark_jars(settings: Settings) -> list[Path]:
    """Return Spark's jars, with those for tables in a store if they lie there. Raises Terminal (`jars-missing`)."""
    remedies = {"spark": "make setup"} | ({"s3a": FETCH_S3A} if settings.stores_tables else {})
    found = {folder: sorted((settings.jars / folder).glob("*.jar")) for folder in remedies}
    for folder in (settings.jars / name for name, jars in found.items() if not jars):
        what = f"no Spark jars in {folder}; Spark was not started"
        raise Terminal(what, remedies[folder.name], code="jars-missing", folder=folder)
    return [jar for jars in found.values() for jar in jars]


def open_session(settings: Settings, name: str, *, delta: bool = False) -> SparkSession:
    """Start or return the process's session, local or of a cluster; `delta` adds delta-spark's SQL.

    Raises InvalidSetting, MasterUnreachable, Transient (`no-executors`), Terminal (`jars-missing`, `guarded-setting`).
    """
    require_master(settings)
    prepare_environment(settings, sys.executable)
    builder = SparkSession.Builder().appName(name).master(spark_master(settings))
    jars = spark_jars(settings)
    options = {
        **TUNED,
        **GUARDED,
        **master_options(settings, jars, JVM_FLAGS),
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars),
        "spark.driver.extraJavaOptions": _jvm_flags(settings),
        "spark.local.dir": str(settings.state / "spark"),
    }
    writes_tables = delta or settings.computes_with_spark
    options |= delta_options() | store_options(settings) if writes_tables else {}
    for key, value in options.items():
        reject_unsafe(key, value)
    with private_options(settings, options) as public:
        for key, value in public.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    if settings.spark_master:
        session.sparkContext.addPyFile(str(code_archive(settings.state / "spark")))
        require_executor(settings, session)
        if settings.computes_with_spark:
            require_shared_folder(settings, session)
    verify_guarded(session)
    if writes_tables:
        require_delta(session)
    remember_lookups(session._jvm)
    return session


@contextmanager
def private_options(settings: Settings, options: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the options without a secret; Spark reads the others from a file that exists only meanwhile, mode 0600.

    PySpark passes its configuration on the command line, which every user of the machine can read.
    """
    folder = settings.state / "spark"
    folder.mkdir(parents=True, exist_ok=True)
    secret = {key: value for key, value in options.items() if holds_secret(key, value)}
    if not secret:
        yield dict(options)
        return
    file = folder / f"{uuid4().hex}.properties"
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
        opened.writelines(f"{_escaped(key)}={_escaped(value)}\n" for key, value in secret.items())
    before = os.environ.get("PYSPARK_SUBMIT_ARGS")
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {shlex.quote(str(file))} {before or 'pyspark-shell'}"
    try:
        yield {key: value for key, value in options.items() if key not in secret}
    finally:
        file.unlink(missing_ok=True)
        if before is None:
            del os.environ["PYSPARK_SUBMIT_ARGS"]
        else:
            os.environ["PYSPARK_SUBMIT_ARGS"] = before


def _escaped(text: str) -> str:
    """Return text as java.util.Properties reads it."""
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t", **{sign: f"\\{sign}" for sign in "\\=: #!"}}
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(named.get(chr(code), chr(code) if 32 <= code < 127 else f"\\u{code:04x}") for code in codes)


def verify_guarded(session: SparkSession) -> None:
    """Raise Terminal unless the session runs with the values of GUARDED."""
    for key, required in GUARDED.items():
        value = session.conf.get(key)
        if str(value).lower() != required.lower():
            what = f"Spark runs with {key}={value}, and needs {required}; nothing was read"
            raise Terminal(what, "headrace doctor", code="guarded-setting", key=key)


def _jvm_flags(settings: Settings) -> str:
    logging = f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"
    # Each JVM unpacks native libraries, which a killed one leaves.
    temporary = f"'-Djava.io.tmpdir={new_process_folder(settings.state / 'spark' / 'temporary')}'"
    archive = class_archive(settings)
    shared = [f"'-XX:SharedArchiveFile={archive}'", "-Xlog:cds*=off"] if archive.is_file() else []
    return " ".join([JVM_FLAGS, logging, temporary, *shared, settings.driver_jvm]).strip()


def class_archive(settings: Settings) -> Path:
    """Return the path of the archive of loaded classes (`class_archive.py`), which halves the start of a JVM."""
    return settings.jars / "spark.jsa"


# py4j looks up the class and the method in the JVM at each call of a function of Spark. The JVM looks for a name
# without its package in every jar of the class path, for every imported package. Building the queries of a run takes
# thousands of these look-ups. These are the names by which PySpark builds columns and queries.
LOOKED_UP = (
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.SparkSession",
    "functions",
    "PythonUtils",
    "PythonSQLUtils",
)


class RememberedClass(JavaClass):  # type: ignore[misc]
    """A Java class that looks up each of its static methods in the JVM once."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            self.__dict__[name] = found
        return found


def remember_lookups(jvm: JVMView) -> None:
    """Make the view of a JVM remember the classes that PySpark uses most; repeating it changes nothing."""
    for name in LOOKED_UP:
        found = getattr(jvm, name)
        if isinstance(found, JavaClass) and not isinstance(found, RememberedClass):
            setattr(jvm, name, RememberedClass(found._fqn, found._gateway_client))


Opened = Callable[[], SparkSession]
"""Waits for a session and returns it, active in the calling thread; raises JavaMissing and as `open_session`."""


def begin_session(settings: Settings, name: str) -> Opened:
    """Begin to open a session, as `open_session` does; return the function that waits for it.

    A process that ends meanwhile waits too: the file with Spark's secret options is removed once Spark has read it.
    """

    def opening() -> SparkSession:
        find_java(os.environ)
        return open_session(settings, name)

    pool = ThreadPoolExecutor(1, "session")
    running = pool.submit(opening)
    pool.shutdown(wait=False)

    def opened() -> SparkSession:
        session = running.result()
        activate(session)
        return session

    return opened


def activate(session: SparkSession) -> None:
    """Make a session that another thread has opened the active one of this thread, whose queries get its settings."""
    assert session._jvm is not None
    session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
