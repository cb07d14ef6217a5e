"""Plans on disk: one folder each in the state folder, written before anything is done.

Guarantee: a stage is recorded when it is done, durably; a line cut off by a crash is as if it had not been written.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from include.catalog.history_slice import parsed_slice
from include.catalog.release_diff import TableChange
from include.errors import Terminal, Transient
from include.paths import plan_path
from include.planning.plan import Event, Plan, PlanRecord, Prediction, Stage, validate_stage
from include.settings import Settings
from include.state.atomic_files import write_atomically

# Making a plan reads logs and a few columns: others wait for it rather than fail.
PLANNING_WITHIN = 60.0
PLAN_ID = re.compile(r"^[a-z]+-[A-Za-z0-9_.-]+-\d+$")


class PlanUnknown(Terminal):
    """There is no such plan; `known` are those that are."""

    def __init__(self, plan: str, known: list[str]) -> None:
        super().__init__(f"plan {plan!r} is unknown", f"known: {', '.join(known) or 'none yet'}")
        self.plan, self.known = plan, known


class PlanBusy(Transient):
    """Another command is at work on the plan."""

    def __init__(self, plan: str, holder: str) -> None:
        super().__init__(f"another command ({holder}) is at work on plan {plan}; nothing was done", "try again later")
        self.plan = plan


def plan_ids(settings: Settings) -> list[str]:
    """Return the ids of all plans, oldest first within a kind and dataset."""
    found = (path.parent.name for path in plan_path(settings, "*").parent.glob("*/plan.json"))
    return sorted(found, key=lambda name: (name.rpartition("-")[0], int(name.rpartition("-")[2])))


def next_plan_id(settings: Settings, kind: str, dataset: str) -> str:
    """Return an id that no plan has: `release-flights-3`."""
    taken = [int(name.rpartition("-")[2]) for name in plan_ids(settings) if name.startswith(f"{kind}-{dataset}-")]
    return f"{kind}-{dataset}-{max(taken, default=0) + 1}"


def save_plan(settings: Settings, plan: Plan) -> PlanRecord:
    """Write a new plan down."""
    write_atomically(_folder(settings, plan.id) / "plan.json", json.dumps(asdict(plan), indent=1, default=_plain))
    return load_plan(settings, plan.id)


def load_plan(settings: Settings, plan: str) -> PlanRecord:
    """Return a plan and its events; PlanUnknown."""
    path = _folder(settings, plan) / "plan.json"
    if not PLAN_ID.match(plan) or not path.is_file():
        raise PlanUnknown(plan, plan_ids(settings))
    return PlanRecord(_plan(json.loads(path.read_text("utf-8"))), list(_events(path.with_name("events.jsonl"))))


def all_plans(settings: Settings) -> list[PlanRecord]:
    """Return every plan."""
    return [load_plan(settings, name) for name in plan_ids(settings)]


def find_plan(settings: Settings, origin: str) -> PlanRecord | None:
    """Return the plan that answers a wish, None when there is none; an empty `origin` is no wish."""
    found = (record for record in all_plans(settings) if origin and record.plan.origin == origin)
    return next(found, None)


def record_stage(settings: Settings, plan: str, stage: Stage, by: str, **facts: Any) -> PlanRecord:
    """Write down that a stage is done; StageRefused when it cannot follow."""
    validate_stage(load_plan(settings, plan), stage)
    said = {"stage": stage, "at": datetime.now(UTC), "by": by, "facts": facts}
    path = _folder(settings, plan) / "events.jsonl"
    kept = path.read_bytes() if path.exists() else b""
    with path.open("ab") as file:
        file.truncate(kept.rfind(b"\n") + 1)
        file.write(json.dumps(said, default=_plain).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return load_plan(settings, plan)


@contextmanager
def plan_lock(settings: Settings, plan: str, within: float = 0.0) -> Iterator[None]:
    """Hold the plan's lock; PlanBusy when another has it for `within` seconds more. It goes away with the process."""
    load_plan(settings, plan)
    with _locked(_folder(settings, plan) / "lock", plan, within):
        yield


@contextmanager
def planning_lock(settings: Settings) -> Iterator[None]:
    """Hold the lock under which plans are made: two at once would both find the way free. PlanBusy after a while."""
    folder = plan_path(settings, "planning").parent
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "planning.lock", "that is being made", PLANNING_WITHIN):
        yield


@contextmanager
def _locked(path: Path, plan: str, within: float) -> Iterator[None]:
    with path.open("a+") as file:
        _await_lock(file, plan, within)
        file.truncate(0)
        file.write(f"pid {os.getpid()}")
        file.flush()
        yield


def _await_lock(file: IO[str], plan: str, within: float) -> None:
    end = time.monotonic() + within
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= end:
                file.seek(0)
                raise PlanBusy(plan, file.read().strip()) from error
            time.sleep(0.2)
        else:
            return


def comparison_path(settings: Settings, plan: str, kind: str) -> Path:
    """Where the plan's comparison is, as `json` or `html`."""
    return _folder(settings, plan) / f"comparison.{kind}"


def _folder(settings: Settings, plan: str) -> Path:
    return plan_path(settings, plan)


def _plan(said: Mapping[str, Any]) -> Plan:
    parts = {
        "planned_at": datetime.fromisoformat(said["planned_at"]),
        "changes": [TableChange(**change) for change in said["changes"]],
        "predicted": Prediction(**{"files": 0, **said["predicted"]}),
        "slice": None if said.get("slice") is None else parsed_slice(said["slice"]),
    }
    return Plan(**{**said, **parts})


def _events(path: Path) -> Iterator[Event]:
    if not path.exists():
        return
    for line in path.read_text("utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            said = json.loads(line)
            yield Event(Stage(said["stage"]), datetime.fromisoformat(said["at"]), said["by"], said["facts"])


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
