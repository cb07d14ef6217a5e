"""Runs all checks on this machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import psutil

from include.ground.jar_lock import installed_jars
from include.ground.java_runtime import find_java, java_path
from include.ground.ports import holder_of, is_free
from include.ground.settings import CLONE, Settings, load_settings
from include.observe.check_file_system import (
    Mount,
    check_file_operations,
    check_ledger_place,
    check_locks_elsewhere,
    check_mount,
)
from include.observe.check_installation import (
    check_jars,
    check_packages,
    check_pyspark_python,
    check_python,
    check_second_spark,
    check_settings,
)
from include.observe.check_kafka import check_kafka
from include.observe.check_resources import (
    check_disk,
    check_heaps,
    check_java,
    check_memory,
    check_port,
    check_spark_master,
    check_writable,
)
from include.observe.check_result import CheckResult
from include.observe.check_store import check_store
from include.observe.check_time_zones import check_java_zones, check_time_zones
from include.observe.process_status import observe_broker


def run_checks() -> list[CheckResult]:
    """Return the results of all checks; without valid settings, of those that need none."""
    findings = installation_findings()
    finding, settings = check_settings(load_settings)
    findings.append(finding)
    return findings if settings is None else findings + state_findings(settings)


def installation_findings() -> list[CheckResult]:
    """Return the results of the checks that need no settings."""
    return [
        check_java(find_java, os.environ),
        check_python(sys.version_info[:3], sys.prefix, CLONE),
        check_packages(installed_version),
        check_pyspark_python(os.environ, sys.executable),
        check_second_spark(os.environ, spark_folder(), Path(sys.prefix) / "bin"),
        check_memory(psutil.virtual_memory().available),
    ]


def state_findings(settings: Settings) -> list[CheckResult]:
    """Return the results of the checks of the folders and the port that the settings name."""
    return [
        check_jars(settings.jars, installed_jars()),
        check_heaps(settings, psutil.virtual_memory().total),
        check_writable(settings.state),
        check_disk(shutil.disk_usage(existing(settings.state)).free, settings.state),
        check_mount(settings.state, mounts()),
        check_file_operations(settings.state),
        *check_locks_elsewhere(settings),
        *check_ledger_place(settings, mounts()),
        check_port(settings.kafka_port, observe_broker(settings), is_free, holder_of),
        *check_kafka(settings),
        *check_spark_master(settings),
        *check_store(settings),
        *check_time_zones(settings),
        *check_java_zones(settings, lambda: java_path(os.environ)),
    ]


def installed_version(package: str) -> str | None:
    """Return the version of a package, None when it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def spark_folder() -> Path:
    """Return the folder of the pyspark that an import finds."""
    spec = importlib.util.find_spec("pyspark")
    return Path(spec.origin).parent if spec and spec.origin else Path(sys.prefix)


def existing(path: Path) -> Path:
    """Return the path, or its nearest existing ancestor."""
    return next(place for place in (path, *path.parents) if place.exists())


def mounts() -> list[Mount]:
    """Return the mounts in the order of mounting."""
    return [Mount(part.mountpoint, part.fstype) for part in psutil.disk_partitions(all=True)]
