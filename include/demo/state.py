"""The demo's files in the state folder: its lock, and the removal of the state by `--fresh`."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from include.ground.errors import Terminal
from include.ground.settings import Settings
from include.observe.doctor import CheckResult, Verdict, run_checks

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


class DemoBusy(DemoRefused):
    """Another demo runs in this state folder."""

    def __init__(self, state: Path) -> None:
        super().__init__(f"another demo runs in {state}; nothing was done", "headrace status")
        self.state = state


class ForeignFiles(DemoRefused):
    """The folder has files that Headrace did not create; `found` are some of them."""

    def __init__(self, state: Path, found: list[str]) -> None:
        super().__init__(
            f"{state} holds files that Headrace did not make: {', '.join(found)}; nothing was removed or stopped",
            "move them away, or set HEADRACE_STATE to another folder",
        )
        self.state, self.found = state, found


class ExternalLedger(DemoRefused):
    """The ledger is not in the state folder, so that removing the folder would leave it behind."""

    def __init__(self) -> None:
        super().__init__(
            "HEADRACE_LEDGER_URL names a ledger outside the state folder, which --fresh would not empty; nothing was "
            "removed or stopped",
            "unset HEADRACE_LEDGER_URL for the demo",
        )


class MachineUnsuitable(DemoRefused):
    """Checks of `headrace doctor` failed: `findings`."""

    def __init__(self, findings: list[CheckResult]) -> None:
        lines = "\n".join(f"  {finding.check}: {finding.found} → {finding.remedy}" for finding in findings)
        super().__init__(
            f"this machine does not meet the requirements; nothing was started\n{lines}",
            "headrace doctor   (all checks)",
        )
        self.findings = findings


def require_fit_machine() -> None:
    """Raise MachineUnsuitable when one of the doctor's checks fails; a warning does not stop the demo."""
    failing = [finding for finding in run_checks() if finding.verdict is Verdict.FAIL]
    if failing:
        raise MachineUnsuitable(failing)


def demo_folder(settings: Settings) -> Path:
    """Return the folder of manifests and of the lock."""
    return settings.state / DEMO_FOLDER


@contextmanager
def demo_lock(settings: Settings) -> Iterator[None]:
    """Lock the state folder for one demo; the lock ends with the process. Raises DemoBusy when it is held."""
    path = demo_folder(settings) / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DemoBusy(settings.state) from error
        yield


def require_own_state(settings: Settings) -> None:
    """Raise ForeignFiles when the state folder holds other files, ExternalLedger when the ledger is outside it."""
    if settings.ledger_url:
        raise ExternalLedger
    if not settings.state.exists():
        return
    if not settings.state.is_dir():
        raise ForeignFiles(settings.state, ["(it is a file)"])
    found = sorted(entry.name for entry in settings.state.iterdir() if not made_by_headrace(entry))
    if found:
        raise ForeignFiles(settings.state, found[:5])


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

    Raises ForeignFiles or ExternalLedger before anything is removed.
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
