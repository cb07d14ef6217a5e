"""The demo's corner of the state folder: one demo at a time, and a fresh start."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from include.doctor.check_result import CheckResult, Verdict
from include.doctor.machine_checks import run_checks
from include.errors import Terminal
from include.settings import Settings

# Everything that Headrace makes in a state folder; the demo's own corner goes last, it knows what is under way.
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
)
LEDGER = "ledger.sqlite"
DEMO_FOLDER = "demo"
LOCK, REMOVING = "demo.lock", "removing"


class DemoRefused(Terminal):
    """The demo was not begun."""


class DemoBusy(DemoRefused):
    """Another demo is at work in this state folder."""

    def __init__(self, state: Path) -> None:
        super().__init__(f"another demo is at work in {state}; nothing was done", "watch it, or: headrace status")
        self.state = state


class ForeignFiles(DemoRefused):
    """The folder holds things that Headrace never made; `found` are some of them."""

    def __init__(self, state: Path, found: list[str]) -> None:
        super().__init__(
            f"{state} was not made by Headrace alone, it holds {', '.join(found)}; nothing was removed or stopped",
            "move these away, or name another folder with HEADRACE_STATE",
        )
        self.state, self.found = state, found


class ExternalLedger(DemoRefused):
    """The ledger is not in the state folder, so that removing the folder would leave it behind."""

    def __init__(self) -> None:
        super().__init__(
            "HEADRACE_LEDGER_URL names a ledger outside the state folder, and --fresh would leave it full of what is "
            "gone; nothing was removed or stopped",
            "unset HEADRACE_LEDGER_URL for the demo",
        )


class MachineUnfit(DemoRefused):
    """A check of `headrace doctor` failed; `findings` say which."""

    def __init__(self, findings: list[CheckResult]) -> None:
        said = "\n".join(f"  {finding.check}: {finding.found} → {finding.remedy}" for finding in findings)
        super().__init__(f"Headrace cannot work here; nothing was started\n{said}", "headrace doctor   (all checks)")
        self.findings = findings


def require_fit_machine() -> None:
    """Raise MachineUnfit when one of the doctor's checks fails; a warning does not stop the demo."""
    failing = [finding for finding in run_checks() if finding.verdict is Verdict.FAIL]
    if failing:
        raise MachineUnfit(failing)


def demo_folder(settings: Settings) -> Path:
    """Return the folder of manifests and of the lock."""
    return settings.state / DEMO_FOLDER


@contextmanager
def demo_lock(settings: Settings) -> Iterator[None]:
    """Hold the state folder for one demo; DemoBusy when another has it. Goes away with the process."""
    path = demo_folder(settings) / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DemoBusy(settings.state) from error
        yield


def require_own_state(settings: Settings) -> None:
    """Raise NotOurs when something in the state folder is not Headrace's, LedgerElsewhere when the ledger is not."""
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
    """Return whether an entry of a state folder has a name and a kind that Headrace gives."""
    if entry.is_symlink():
        return False
    folder = entry.name in STATE_FOLDERS or entry.name == DEMO_FOLDER
    return entry.is_dir() if folder else entry.name.startswith(LEDGER) and entry.is_file()


def removal_interrupted(settings: Settings) -> bool:
    """Return whether a removal began and was interrupted: what is left belongs together no more."""
    return (demo_folder(settings) / REMOVING).exists()


def remove_state(settings: Settings, stop_streams: Callable[[], object]) -> None:
    """Stop the streams and remove all that is in the state folder but the lock; interrupted: call it again.

    NotOurs and LedgerElsewhere with nothing done.
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
