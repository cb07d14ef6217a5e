"""Checks of the machine and of the installation. Sizes are bytes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from include.ground.java import Jar, JarMismatch, Java, JavaMissing, verify_jar
from include.ground.ports import STANDALONE, MasterUnreachable, require_master
from include.ground.settings import InvalidSetting, Settings, heap_bytes
from include.state.process_states import ProcessState, ProcessStatus


class Verdict(Enum):
    """Outcome of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class CheckResult:
    """One check: its name, the verdict, what was found, and the remedy (empty for OK)."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def passed(check: str, found: str) -> CheckResult:
    """Return the result of a passed check."""
    return CheckResult(check, Verdict.OK, found)


def warning(check: str, found: str, remedy: str) -> CheckResult:
    """Return a warning, which does not prevent Headrace from working."""
    return CheckResult(check, Verdict.WARN, found, remedy)


def failed(check: str, found: str, remedy: str) -> CheckResult:
    """Return a failure, with which Headrace cannot work correctly."""
    return CheckResult(check, Verdict.FAIL, found, remedy)


GB = 1_000_000_000
LEAST_DISK, GOOD_DISK = 2 * GB, 5 * GB
GOOD_MEMORY = 4 * GB


def check_java(find: Callable[[Mapping[str, str]], Java], environ: Mapping[str, str]) -> CheckResult:
    """Check that Java is installed and new enough, and that JAVA_HOME, if set, names it."""
    try:
        java = find(environ)
    except JavaMissing as error:
        return failed("java", error.what, error.remedy)
    origin = "JAVA_HOME" if environ.get("JAVA_HOME") else "PATH"
    return passed("java", f"{java.version} at {java.path} (by {origin})")


def check_disk(free: int, folder: Path) -> CheckResult:
    """Check for enough space on the state folder's file system."""
    found = f"{free / GB:.1f} GB free for {folder}"
    remedy = f"make room, or set HEADRACE_STATE to a folder with more than {GOOD_DISK / GB:.0f} GB"
    if free < LEAST_DISK:
        return failed("disk", found, remedy)
    return passed("disk", found) if free >= GOOD_DISK else warning("disk", found, remedy)


def check_memory(available: int) -> CheckResult:
    """Check for enough memory for a broker and one or two drivers."""
    found = f"{available / GB:.1f} GB available"
    if available >= GOOD_MEMORY:
        return passed("memory", found)
    return warning("memory", found, "end other programs, or set HEADRACE_DRIVER_MEMORY lower (one dataset: 2g)")


def check_heaps(settings: Settings, memory: int) -> CheckResult:
    """Check that the heaps of the broker and one driver fit into the machine's memory (bytes)."""
    found = f"driver {settings.driver_memory}, broker {settings.broker_memory}, machine {memory / (1 << 30):.1f} GiB"
    if heap_bytes(settings.driver_memory) + heap_bytes(settings.broker_memory) <= memory:
        return passed("heaps", found)
    return failed("heaps", f"{found}: they do not fit", "set HEADRACE_DRIVER_MEMORY lower, or HEADRACE_PROFILE=small")


def check_spark_master(settings: Settings) -> list[CheckResult]:
    """Check that the master of a standalone Spark cluster answers; other masters are not tried: a warning."""
    if not settings.spark_master:
        return []
    if not settings.spark_master.startswith(STANDALONE):
        return [warning("spark master", f"{settings.spark_master} was not tried", "headrace up, then headrace status")]
    try:
        require_master(settings)
    except MasterUnreachable as error:
        remedy = "start the master, or correct HEADRACE_SPARK_MASTER (docs/tasks/run-on-a-cluster.md)"
        return [failed("spark master", error.what, remedy)]
    return [passed("spark master", settings.spark_master)]


def check_writable(state: Path) -> CheckResult:
    """Check that the state folder can be created and written."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=state) as probe:
            probe.write(b"x" * 4096)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return failed("state folder", f"{state}: {error.strerror}", "set HEADRACE_STATE to a folder you can write to")
    return passed("state folder", f"{state} is writable")


def check_port(
    port: int, broker: ProcessStatus, is_free: Callable[[int], bool], holder: Callable[[int], str]
) -> CheckResult:
    """Check that the configured broker port is free, or used by our broker."""
    if broker.state is ProcessState.RUNNING:
        return passed("port", f"our broker is at {broker.detail}")
    if port == 0:
        return passed("port", "a free one is taken at the start")
    if is_free(port):
        return passed("port", f"{port} is free")
    found = f"{port} is in use{f' by {holder(port)}' if holder(port) else ''}"
    return failed("port", found, "stop that process, or choose another HEADRACE_KAFKA_PORT (0: a free one)")


PYTHON = (3, 11)
SPARK = "4.2.0"


def check_python(version: tuple[int, int, int], prefix: str, clone: Path) -> CheckResult:
    """Check that Python is 3.11 and of the clone's own environment."""
    found = f"{'.'.join(map(str, version))} in {prefix}"
    if version[:2] != PYTHON:
        return failed("python", found, "make setup   (with Python 3.11 on PATH)")
    if Path(prefix) != clone / ".venv":
        return warning("python", f"{found}, not the clone's own .venv", "use .venv/bin/headrace of this clone")
    return passed("python", found)


def check_packages(version_of: Callable[[str], str | None]) -> CheckResult:
    """Check that pyspark, and pyspark-client if installed, have the version for which the jars are built."""
    spark, client = version_of("pyspark"), version_of("pyspark-client")
    found = f"pyspark {spark or 'missing'}{f', pyspark-client {client}' if client else ''}"
    if spark != SPARK or client not in (None, spark):
        return failed("packages", f"{found}; {SPARK} is needed", "make setup")
    return passed("packages", found)


def check_jars(jars: Path, locked: Sequence[Jar]) -> CheckResult:
    """Check that every locked jar is present with the locked hash."""
    missing = [jar.coordinate for jar in locked if not jar.path_in(jars).is_file()]
    if missing:
        return failed("jars", f"{len(missing)} of {len(locked)} missing in {jars}, first {missing[0]}", "make setup")
    try:
        for jar in locked:
            verify_jar(jar, jar.path_in(jars))
    except JarMismatch as error:
        return failed("jars", error.what, error.remedy)
    return passed("jars", f"{len(locked)} with the locked sha256 in {jars}")


def check_pyspark_python(environ: Mapping[str, str], executable: str) -> CheckResult:
    """Check that Spark's Python workers run this Python: another one has other packages, or none."""
    chosen = environ.get("PYSPARK_PYTHON")
    if not chosen:
        return passed("PYSPARK_PYTHON", "not set: Spark takes this Python")
    path = shutil.which(chosen, path=environ.get("PATH"))
    # Not resolved: a virtual environment's Python is a link to its base Python.
    if path and os.path.abspath(path) == os.path.abspath(executable):
        return passed("PYSPARK_PYTHON", path)
    return failed("PYSPARK_PYTHON", f"{chosen}, not {executable}", "unset PYSPARK_PYTHON")


def check_second_spark(environ: Mapping[str, str], spark: Path, scripts: Path) -> CheckResult:
    """Check that no other Spark precedes ours; `spark` is our pyspark's folder, `scripts` our environment's bin."""
    name = "second Spark"
    home = environ.get("SPARK_HOME")
    if home and Path(home).resolve() != spark.resolve():
        return failed(name, f"SPARK_HOME={home}: its jars would be taken, not those of {spark}", "unset SPARK_HOME")
    shadowing = [place for place in environ.get("PYTHONPATH", "").split(os.pathsep) if _holds_pyspark(place)]
    if shadowing:
        return failed(name, f"PYTHONPATH leads to another pyspark: {shadowing[0]}", "unset PYTHONPATH")
    if environ.get("SPARK_CONF_DIR"):
        found = f"SPARK_CONF_DIR={environ['SPARK_CONF_DIR']}: its settings are added to ours"
        return warning(name, found, "unset SPARK_CONF_DIR")
    submit = shutil.which("spark-submit", path=environ.get("PATH"))
    if submit and Path(submit).parent.resolve() != scripts.resolve():
        return warning(name, f"{submit} is another Spark's", f"call {scripts}/spark-submit by its whole path")
    return passed(name, "none")


def _holds_pyspark(place: str) -> bool:
    return bool(place) and ((Path(place) / "pyspark" / "__init__.py").exists() or "pyspark" in Path(place).name)


def check_settings(load: Callable[[], Settings]) -> tuple[CheckResult, Settings | None]:
    """Check that the settings are valid; also return them, None when they are not."""
    try:
        settings = load()
    except InvalidSetting as error:
        return failed("settings", error.what, error.remedy), None
    return passed("settings", "valid"), settings
