"""Check of the rules of time zones: each published release's are those of the installed `tzdata`."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from include.declare.dataset import dataset_names
from include.declare.derived_dataset import derived_names
from include.declare.time_zones import database_version, recorded_version
from include.ground.java_runtime import JavaMissing
from include.ground.settings import Settings
from include.observe.check_result import CheckResult, passed, warning
from include.observe.outdated_zones import OutdatedZones, outdated_zones

NAMED = 3
ZONE_CALL = re.compile(r"\b(from_utc_timestamp|to_utc_timestamp|convert_timezone)\b", re.IGNORECASE)


def check_time_zones(settings: Settings) -> list[CheckResult]:
    """Warn of each published release whose windows follow other rules than a new release would."""
    found = [_outdated(each) for each in outdated_zones(settings)]
    return found or [passed("time zones", f"tzdata {database_version()}; no published release has other rules")]


def _outdated(found: OutdatedZones) -> CheckResult:
    more = f" and {len(found.changed) - NAMED} more" if len(found.changed) > NAMED else ""
    why = (
        f"{found.dataset}: the windows of release {found.release} keep the rules of tzdata "
        f"{recorded_version(found.folder)}; the installed {database_version()} has others for "
        f"{', '.join(found.changed[:NAMED])}{more}"
    )
    return warning("time zones", why, f"headrace release plan --dataset {found.dataset}   (takes the installed rules)")


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
