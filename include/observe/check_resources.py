"""Checks of the machine: Java, disk, memory, Spark's master, port. Sizes are bytes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from include.ground.java_runtime import Java, JavaMissing
from include.ground.settings import Settings, heap_bytes
from include.ground.spark_master import STANDALONE, MasterUnreachable, require_master
from include.observe.check_result import CheckResult, failed, passed, warning
from include.state.process_states import ProcessState, ProcessStatus

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
    return failed("heaps", f"{found}: they do not fit", "set HEADRACE_DRIVER_MEMORY or HEADRACE_BROKER_MEMORY lower")


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
