"""Check of the rules of time zones: each published release's are those of the installed `tzdata`."""

from __future__ import annotations

from include.catalog.time_zones import database_version, recorded_version
from include.doctor.check_result import CheckResult, passed, warning
from include.settings import Settings
from include.status.outdated_zones import OutdatedZones, outdated_zones

NAMED = 3


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
