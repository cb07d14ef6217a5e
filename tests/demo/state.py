"""The demo's files in the state folder: its lock, and the removal of the state by `--fresh`."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from include.ground.errors import Terminal
from include.ground.settings import Settings
from include.observe.doctor import Verdict, run_checks

# Every folder that Headrace creates in a state folder; the demo's own is removed last: it marks an unfinished removal.
STATE_FOLDERS = (
    "run",
    "logs",
    "leases",
    "spark",
    "checkpoints",
    "releases",
    "warehouse",
    "kafka",
    "plans",
    "desired",
    "requests",
    "wanted",
    "orders",
    "airflow",
    "drafts",
    "quality",
    "audits",
    "console",
    "metrics",
    "openlineage",
    "analyses",
    "removed",
    "restoring",
    "spill",
    "benchmarks",
)
LEDGER = "ledger.sqlite"
DEMO_FOLDER = "demo"
LOCK, REMOVING = "demo.lock", "removing"


class DemoRefused(Terminal):
    """The demo was not started."""


def require_fit_machine() -> None:
    """Raise DemoRefused when one of the doctor's checks fails; a warning does not stop the demo."""
    failing = [finding for finding in run_checks() if finding.verdict is Verdict.FAIL]
    if failing:
        lines = "\n".join(f"  {finding.check}: {finding.found} → {finding.remedy}" for finding in failing)
        what = f"this machine does not meet the requirements; nothing was started\n{lines}"
        raise DemoRefused(what, "headrace doctor   (all checks)", code="machine-unsuitable")


def demo_folder(settings: Settings) -> Path:
    """Return the folder of manifests and of the lock."""
    return settings.state / DEMO_FOLDER


@contextmanager
def demo_lock(settings: Settings) -> Iterator[None]:
    """Lock the state folder for one demo; the lock ends with the process. Raises DemoRefused when it is held."""
    path = demo_folder(settings) / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            what = f"another demo runs in {settings.state}; nothing was done"
            raise DemoRefused(what, "headrace status", code="demo-busy") from error
        yield


def require_own_state(settings: Settings) -> None:
    """Raise DemoRefused when the state folder holds other files, or when the ledger is outside it."""
    if settings.ledger_url:
        what = "HEADRACE_LEDGER_URL names a ledger outside the state folder, which --fresh would not empty"
        remedy = "unset HEADRACE_LEDGER_URL for the demo"
        raise DemoRefused(f"{what}; nothing was removed or stopped", remedy, code="external-ledger")
    if not settings.state.exists():
        return
    entries = settings.state.iterdir() if settings.state.is_dir() else ()
    found = sorted(entry.name for entry in entries if not made_by_headrace(entry))[:5]
    if found or not settings.state.is_dir():
        files = ", ".join(found) or "(it is a file)"
        what = f"{settings.state} holds files that Headrace did not make: {files}; nothing was removed or stopped"
        remedy = "move them away, or set HEADRACE_STATE to another folder"
        raise DemoRefused(what, remedy, code="foreign-files", found=found)


def made_by_headrace(entry: Path) -> bool:
    """Return whether Headrace creates an entry of this name and type in a state folder."""
    if entry.is_symlink():
        return False
    folder = entry.name in STATE_FOLDERS or entry.name == DEMO_FOLDER
    return entry.is_dir() if folder else entry.name.startswith(LEDGER) and entry.is_file()


def removal_interrupted(settings: Settings) -> bool:
    """Return whether a removal was interrupted: the remaining files are inconsistent."""
    return (demo_folder(settings) / REMOVING).exists()


def remove_state(settings: Settings, stop_streams: Callable[[], object]) -> None:
    """Stop the streams and remove everything in the state folder but the lock; after an interruption, call it again.

    Raises DemoRefused before anything is removed.
    """
    require_own_state(settings)
    begun = demo_folder(settings) / REMOVING
    begun.parent.mkdir(parents=True, exist_ok=True)
    begun.touch()
    stop_streams()
    for folder in (settings.state / name for name in STATE_FOLDERS):
        if folder.exists():
            shutil.rmtree(folder)
    for entry in [*settings.state.glob(f"{LEDGER}*"), *demo_folder(settings).iterdir()]:
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name not in (LOCK, REMOVING):
            entry.unlink()
    begun.unlink()
