"""All checks of `headrace doctor`: the machine, and around it file system, Kafka, object store and time zones."""

from __future__ import annotations

import errno
import fcntl
import importlib.metadata
import importlib.util
import os
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from include.declare.dataset import dataset_names, declared_dataset
from include.declare.derived_dataset import derived_names
from include.declare.time_zones import changed_zones, database_version, recorded_version
from include.ground import ports
from include.ground.errors import HeadraceError
from include.ground.java import Jar, JarMismatch, Java, JavaMissing, find_java, installed_jars, java_path, verify_jar
from include.ground.kafka import TopicMissing, cluster_id, topic_concerns
from include.ground.object_store import StoreUnavailable, find_store
from include.ground.paths import runner_lock_path, snapshot_path
from include.ground.ports import HadoopUnknown, MasterUnreachable, master_addresses, require_master
from include.ground.settings import CLONE, InvalidSetting, PasswordUnreadable, Settings, heap_bytes, load_settings
from include.observe.processes import observe_process
from include.read.publication import find_publication
from include.read.stored_publication import StoreUnsafe, require_conditional_puts
from include.state.json_file import StateFileUnreadable
from include.state.lease import is_free
from include.state.process_states import BROKER, RUNNER, ProcessState, ProcessStatus
from include.state.run_files import EXPIRY, RunFile, bootstrap_servers, read_run_file


class Verdict(Enum):
    """Outcome of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class CheckResult:
    """One check: its name, what was found, the remedy (empty for OK), and the verdict.

    With a warning Headrace works, with a failure it cannot work correctly.
    """

    check: str
    found: str
    remedy: str = ""
    verdict: Verdict = Verdict.OK


passed = CheckResult
warning = partial(CheckResult, verdict=Verdict.WARN)
failed = partial(CheckResult, verdict=Verdict.FAIL)
GB = 1_000_000_000
LEAST_DISK, GOOD_DISK, GOOD_MEMORY = 2 * GB, 5 * GB, 4 * GB


def check_java(find: Callable[[Mapping[str, str]], Java], environ: Mapping[str, str]) -> CheckResult:
    """Check that Java is installed and new enough, and that JAVA_HOME, if set, names it."""
    try:
        java = find(environ)
    except JavaMissing as error:
        return failed("java", error.what, error.remedy)
    origin = " (by JAVA_HOME)" if environ.get("JAVA_HOME") else ""
    return passed("java", f"{java.version} at {java.path}{origin}")


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
    """Check that the master of a Spark cluster answers; Kubernetes is not tried: a warning."""
    if not settings.spark_master:
        return []
    try:
        require_master(settings)
    except (HadoopUnknown, MasterUnreachable) as error:
        return [failed("spark master", error.what, error.remedy)]
    if not master_addresses(settings.spark_master):
        return [warning("spark master", f"{settings.spark_master} was not tried", "headrace up, then headrace status")]
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


PYTHONS = ((3, 11), (3, 12), (3, 13))
SPARK = "4.2.0"


def check_python(version: tuple[int, int, int], prefix: str, clone: Path) -> CheckResult:
    """Check that Python is a supported one and of the clone's own environment."""
    found = f"{'.'.join(map(str, version))} in {prefix}"
    if version[:2] not in PYTHONS:
        return failed("python", found, "make setup   (takes Python 3.11, 3.12 or 3.13, or brings one)")
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


SHARED = "what other hosts see of it depends on its options (docs/how-to/several-hosts.md)"
FLEETING = {
    **dict.fromkeys(("tmpfs", "ramfs"), "it is memory: all is lost when the machine stops"),
    **dict.fromkeys(("overlay", "overlayfs"), "it is a container's own layer: all is lost with the container"),
    **dict.fromkeys(("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.glusterfs"), SHARED),
}
NO_FAULT_OF_ITS_KIND = (errno.ENOENT, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
MOUNT = "mount the file system with locks for all hosts, or set HEADRACE_LEASE_URL"
ROOM = "make the folder exist, writable for this user and with free space, then headrace doctor"
Link = Callable[[Path, Path], None]


class Mount(NamedTuple):
    """A mounted file system."""

    mountpoint: str
    fstype: str


def check_mount(state: Path, mounts: Iterable[Mount]) -> CheckResult:
    """Check that the state folder is on a persistent local file system."""
    mount = _mount_of(state, mounts)
    if mount is None:
        return warning("file system", f"unknown for {state}", "make sure that it is a local disk")
    found = f"{mount.fstype} at {mount.mountpoint}"
    if mount.fstype not in FLEETING:
        return passed("file system", found)
    remedy = "set HEADRACE_STATE to a folder on a local disk"
    return warning("file system", f"{found}: {FLEETING[mount.fstype]}", remedy)


def check_ledger_place(settings: Settings, mounts: Iterable[Mount]) -> list[CheckResult]:
    """Check that an SQLite ledger is not on a network file system: one machine's processes share its index in memory.

    Empty for a ledger on PostgreSQL, or on a local file system.
    """
    mount = _mount_of(settings.state, mounts)
    if settings.ledger_url or mount is None or FLEETING.get(mount.fstype) != SHARED:
        return []
    found = f"SQLite on {mount.fstype}: only the processes of one machine may open it"
    return [warning("ledger", found, "set HEADRACE_LEDGER_URL to a PostgreSQL database, then headrace ledger rebuild")]


def _mount_of(path: Path, mounts: Iterable[Mount]) -> Mount | None:
    """Return the mount of a path: the longest matching mount point, the last mounted of equal ones."""
    leading = [mount for mount in mounts if path.is_relative_to(mount.mountpoint)]
    return max(reversed(leading), key=lambda mount: len(mount.mountpoint)) if leading else None


def check_file_operations(state: Path, link: Link = os.link) -> CheckResult:
    """Check that a hard link creates a name once, a rename replaces a file, and an OS lock excludes."""
    remedy = "set HEADRACE_STATE to a folder on a local disk, or on a network file system with them"
    try:
        with tempfile.TemporaryDirectory(dir=state, prefix=".doctor-") as folder:
            missing = _missing_operation(Path(folder), link)
    except OSError as error:
        full = error.errno in NO_FAULT_OF_ITS_KIND
        return failed("file operations", f"{state}: {error.strerror}", ROOM if full else remedy)
    if missing:
        return failed("file operations", f"{state}: {missing}", remedy)
    return passed("file operations", "hard links, renames and locks work")


def _missing_operation(folder: Path, link: Link) -> str:
    """Return what does not work in a folder, "" when all does."""
    new, name = folder / "new", folder / "name"
    new.write_text("first")
    try:
        link(new, name)
    except OSError as error:
        return f"there are no hard links ({error.strerror}), which commits need"
    with suppress(FileExistsError):
        link(new, name)
        return "a hard link replaces a file: commits would overwrite each other"
    other = folder / "other"
    other.write_text("second")
    other.replace(name)
    if (name.read_text(), new.read_text(), other.exists()) != ("second", "first", False):
        return "a rename does not replace a file"
    return "" if _lock_excludes(name) else "an OS lock (flock) does not exclude another one"


def _lock_excludes(path: Path) -> bool:
    # NFS grants an exclusive lock only on a file that is open for writing.
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return not is_free(path)


def check_locks_elsewhere(settings: Settings) -> list[CheckResult]:
    """Check that the lock of a runner on another host is visible here; empty without one, or with leases elsewhere."""
    run = None if settings.lease_url else _runner_elsewhere(settings)
    if run is None:
        return []
    try:
        is_shared = not is_free(runner_lock_path(settings))
    except OSError as error:
        return [failed("locks", f"the file system refuses locks: {error.strerror}", MOUNT)]
    if is_shared:
        return [passed("locks", f"the lock of the runner on {run.host} is visible here")]
    found = f"the lock of the runner on {run.host} is free here: locks are not shared, or it has just ended"
    return [failed("locks", found, f"headrace doctor again after {EXPIRY:.0f} s; then {MOUNT}")]


def _runner_elsewhere(settings: Settings) -> RunFile | None:
    """Return the record of a runner that works in another container or on another host, None without one."""
    with suppress(StateFileUnreadable):
        run = read_run_file(settings, RUNNER)
        return run if run is not None and run.is_elsewhere() and run.has_heartbeat() else None
    return None


NAMED = 3
ZONE_CALL = re.compile(r"\b(from_utc_timestamp|to_utc_timestamp|convert_timezone)\b", re.IGNORECASE)


def check_time_zones(settings: Settings) -> list[CheckResult]:
    """Warn of each published release whose windows follow other rules than a new release would."""
    found = [outdated for name in dataset_names(settings) if (outdated := _outdated(settings, name)) is not None]
    return found or [passed("time zones", f"tzdata {database_version()}; no published release has other rules")]


def _outdated(settings: Settings, dataset: str) -> CheckResult | None:
    # `status` and `audit` report a publication that cannot be read.
    with suppress(HeadraceError):
        if (publication := find_publication(settings, dataset)) is None:
            return None
        folder = snapshot_path(settings, dataset, publication.release)
        if not (changed := changed_zones(folder)):
            return None
        more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
        why = (
            f"{dataset}: the windows of release {publication.release} keep the rules of tzdata "
            f"{recorded_version(folder)}; the installed {database_version()} has others for "
            f"{', '.join(changed[:NAMED])}{more}"
        )
        return warning("time zones", why, f"headrace release plan --dataset {dataset}   (takes the installed rules)")
    return None


def check_java_zones(settings: Settings, launcher: Callable[[], Path]) -> Iterator[CheckResult]:
    """Warn of code and SQL of datasets that call Spark's functions of time zones, when Java's rules are of a version of
    their own."""
    if not (calling := list(_calling_files(settings))):
        return
    try:
        java = java_database(launcher())
    except JavaMissing:
        # `check_java` reports it.
        return
    if java in ("", database_version()):
        return
    more = f" and {len(calling) - NAMED} more" if len(calling) > NAMED else ""
    why = (
        f"{', '.join(calling[:NAMED])}{more}: Spark's functions follow Java's rules (tzdata {java}), the windows of "
        f"gold tzdata {database_version()}; a few zones differ"
    )
    yield warning("time zones of Java", why, "use a window with time_zone where both must agree, or a newer Java")


def java_database(launcher: Path) -> str:
    """Return the version of a Java's database of time zones, like `2025a`; empty when it cannot be read."""
    path = launcher.resolve().parent.parent / "lib" / "tzdb.dat"
    try:
        data = path.read_bytes()
        # A byte, "TZDB", the number of versions, then the first one; each text after its length.
        (length,) = struct.unpack_from(">H", data, 9)
        return data[11 : 11 + length].decode("ascii") if data[3:7] == b"TZDB" else ""
    except (OSError, struct.error, UnicodeDecodeError):
        return ""


def _calling_files(settings: Settings) -> Iterator[str]:
    for name in sorted({*dataset_names(settings), *derived_names(settings)}):
        folder = settings.datasets / name
        for file in sorted(path for kind in ("*.py", "*.sql", "*.yaml") for path in folder.rglob(kind)):
            if ZONE_CALL.search(file.read_text("utf-8", errors="replace")):
                yield f"{name}/{file.relative_to(folder).as_posix()}"


def check_kafka(settings: Settings) -> list[CheckResult]:
    """Kafka answers, and the settings of each topic keep its records; empty for Headrace's own broker."""
    if not settings.kafka_bootstrap:
        return []
    try:
        bootstrap = bootstrap_servers(settings)
        cluster_id(bootstrap)
        topics = {declared_dataset(settings, name).pipeline.topic for name in dataset_names(settings)}
        findings = [finding for topic in sorted(topics) for finding in _check_topic(bootstrap, topic)]
    except HeadraceError as error:
        return [failed("kafka", error.what, error.remedy or "correct the HEADRACE_KAFKA… settings, or start Kafka")]
    return [passed("kafka", f"{settings.kafka_bootstrap} answers"), *findings]


def _check_topic(bootstrap: str, topic: str) -> list[CheckResult]:
    """Return a warning for each setting of the topic that can lose records; nothing for a topic that is missing."""
    remedy = "change it with kafka-configs.sh, the number of copies with kafka-reassign-partitions.sh"
    try:
        return [warning(f"topic {topic}", concern, remedy) for concern in topic_concerns(bootstrap, topic)]
    except TopicMissing:
        return []


def check_store(settings: Settings) -> list[CheckResult]:
    """The object store answers, and exactly one of several racing conditional puts succeeds; empty without a store."""
    try:
        if (store := find_store(settings)) is None:
            return []
        require_conditional_puts(store)
    except StoreUnavailable as error:
        return [failed("object store", error.what, "correct the HEADRACE_WAREHOUSE… settings, or start the store")]
    except (StoreUnsafe, PasswordUnreadable) as error:
        return [failed("object store", error.what, error.remedy)]
    return [passed("object store", f"{store.url}: conditional puts exclude each other")]


def run_checks() -> list[CheckResult]:
    """Return the results of all checks; without valid settings, of those that need none."""
    findings = _installation_findings()
    finding, settings = check_settings(load_settings)
    findings.append(finding)
    return findings if settings is None else findings + _state_findings(settings)


def _installation_findings() -> list[CheckResult]:
    return [
        check_java(find_java, os.environ),
        check_python(sys.version_info[:3], sys.prefix, CLONE),
        check_packages(_installed_version),
        check_pyspark_python(os.environ, sys.executable),
        check_second_spark(os.environ, _spark_folder(), Path(sys.prefix) / "bin"),
        check_memory(psutil.virtual_memory().available),
    ]


def _state_findings(settings: Settings) -> list[CheckResult]:
    return [
        check_jars(settings.jars, installed_jars()),
        check_heaps(settings, psutil.virtual_memory().total),
        check_writable(settings.state),
        check_disk(shutil.disk_usage(existing(settings.state)).free, settings.state),
        check_mount(settings.state, mounts()),
        check_file_operations(settings.state),
        *check_locks_elsewhere(settings),
        *check_ledger_place(settings, mounts()),
        check_port(settings.kafka_port, observe_process(settings, BROKER), ports.is_free, ports.holder_of),
        *check_kafka(settings),
        *check_spark_master(settings),
        *check_store(settings),
        *check_time_zones(settings),
        *check_java_zones(settings, lambda: java_path(os.environ)),
    ]


def _installed_version(package: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def _spark_folder() -> Path:
    spec = importlib.util.find_spec("pyspark")
    return Path(spec.origin).parent if spec and spec.origin else Path(sys.prefix)


def existing(path: Path) -> Path:
    """Return the path, or its nearest existing ancestor."""
    return next(place for place in (path, *path.parents) if place.exists())


def mounts() -> list[Mount]:
    """Return the mounts in the order of mounting."""
    return [Mount(part.mountpoint, part.fstype) for part in psutil.disk_partitions(all=True)]
