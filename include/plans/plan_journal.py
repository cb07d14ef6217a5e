"""The plan folders: one folder for each plan in the state folder. Only this module reads and writes them.

Reads / Writes: `plan.json`, `events.jsonl`, `failure.txt`, `comparison.json`, `comparison.html`, `lock`.
Guarantee: a stage's event is on disk when `record_result` returns.
After a crash: a line of events.jsonl that was cut off counts as not written.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from include.catalog.history_slice import parsed_slice
from include.catalog.release_diff import TableChange
from include.durable_files import write_atomically
from include.errors import Terminal, Transient
from include.host.process_place import process_label
from include.paths import plan_path
from include.plans.comparison import Comparison, comparison_from_json
from include.plans.plan import OPEN, Event, Plan, PlanRecord, Prediction, validate_stage
from include.plans.plan_index import (
    INDEX,
    Entry,
    add_plan,
    build_index,
    index_path,
    maybe_open,
    plan_of,
    remove_closed,
)
from include.plans.stage_results import Stage, StageResult, read_result, result_json
from include.settings import Settings

# Planning takes seconds (it reads logs and few columns), so a second planner waits for the lock.
PLANNING_TIMEOUT = 60.0
FAILURE = "failure.txt"
PLAN_ID = re.compile(r"[a-z]+-[A-Za-z0-9_.-]+-[0-9]{1,9}")


class PlanUnknown(Terminal):
    """No plan has this id; `known` are the ids of all plans."""

    def __init__(self, plan: str, known: list[str]) -> None:
        super().__init__(f"plan {plan!r} is unknown", f"known: {', '.join(known) or 'none yet'}")
        self.plan, self.known = plan, known


@dataclass(frozen=True)
class UnreadablePlan:
    """A folder among the plans that cannot be read as a plan, and why."""

    path: Path
    why: str


class PlanUnreadable(Terminal):
    """The files of a plan are damaged; `found` says where and why."""

    def __init__(self, found: UnreadablePlan) -> None:
        super().__init__(
            f"{found.path} cannot be read as a plan ({found.why}); it was left alone",
            f"restore it from a backup, or move it away: mv {str(found.path)!r} /tmp/",
        )
        self.found = found


class PlanBusy(Transient):
    """Another command is working on the plan."""

    def __init__(self, plan: str, holder: str) -> None:
        super().__init__(f"another command ({holder}) is working on plan {plan}; nothing was done", "try again later")
        self.plan = plan


def plan_ids(settings: Settings) -> list[str]:
    """Return the ids of all plans, oldest first within a kind and dataset; folders with other names are left out."""
    found = (path.parent.name for path in _plans_folder(settings).glob("*/plan.json"))
    ids = filter(PLAN_ID.fullmatch, found)
    return sorted(ids, key=lambda name: (name.rpartition("-")[0], int(name.rpartition("-")[2])))


def next_plan_id(settings: Settings, kind: str, dataset: str) -> str:
    """Return an id that no plan has: `release-flights-3`."""
    taken = [int(name.rpartition("-")[2]) for name in plan_ids(settings) if name.startswith(f"{kind}-{dataset}-")]
    return f"{kind}-{dataset}-{max(taken, default=0) + 1}"


def save_plan(settings: Settings, plan: Plan) -> PlanRecord:
    """Write a new plan; return it as recorded."""
    _ensure_index(settings)
    add_plan(settings, Entry(plan.id, is_open=True, origin=plan.origin))
    write_atomically(_folder(settings, plan.id) / "plan.json", json.dumps(asdict(plan), indent=1, default=_plain))
    return load_plan(settings, plan.id)


def load_plan(settings: Settings, plan: str) -> PlanRecord:
    """Return a plan and its events. Raises PlanUnknown, PlanUnreadable."""
    folder = _folder(settings, plan)
    if not _is_written(settings, plan):
        raise PlanUnknown(plan, plan_ids(settings))
    try:
        state = [_state_of(folder / name) for name in ("plan.json", "events.jsonl")]
        if (read := _read_before.get(folder)) is None or read[0] != state:
            record = PlanRecord(_read_plan(folder / "plan.json"), list(_read_events(folder / "events.jsonl")))
            read = _read_before[folder] = (state, record)
        return read[1]
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise PlanUnreadable(UnreadablePlan(folder, f"{type(error).__name__}: {str(error)[:200]}")) from error


def all_plans(settings: Settings) -> list[PlanRecord]:
    """Return every plan that can be read; `unreadable_plans` returns the others."""
    return [found for found in _load_all(settings) if isinstance(found, PlanRecord)]


def unreadable_plans(settings: Settings) -> list[UnreadablePlan]:
    """Return the folders that are not plans, and the plans whose files are damaged."""
    folders = (p for p in _plans_folder(settings).glob("*") if p.is_dir() and not p.name.startswith(INDEX))
    strays = [folder for folder in folders if not PLAN_ID.fullmatch(folder.name)]
    damaged = [found for found in _load_all(settings) if isinstance(found, UnreadablePlan)]
    return [*(UnreadablePlan(path, "its name is not a plan's id") for path in sorted(strays)), *damaged]


def _load_all(settings: Settings) -> Iterator[PlanRecord | UnreadablePlan]:
    for name in plan_ids(settings):
        try:
            yield load_plan(settings, name)
        except PlanUnreadable as error:
            yield error.found


def open_plans(settings: Settings) -> list[PlanRecord]:
    """Return every open plan that can be read, without reading the others."""
    _ensure_index(settings)
    records = [_load_listed(settings, plan) for plan in sorted(maybe_open(settings))]
    return [record for record in records if record is not None and record.is_open]


def find_plan(settings: Settings, origin: str) -> PlanRecord | None:
    """Return the plan of an Airflow run, None when there is none or `origin` is empty. Reads only this plan."""
    if not origin:
        return None
    _ensure_index(settings)
    plan = plan_of(settings, origin)
    record = None if plan is None else _load_listed(settings, plan)
    return record if record is not None and record.plan.origin == origin else None


def _load_listed(settings: Settings, plan: str) -> PlanRecord | None:
    """Return a plan of the index, None when it is gone or unreadable."""
    try:
        return load_plan(settings, plan) if _is_written(settings, plan) else None
    except (PlanUnknown, PlanUnreadable):
        return None


def _ensure_index(settings: Settings) -> None:
    if not index_path(settings).is_dir():
        build_index(settings, map(_entry, _load_all(settings)))


def _entry(found: PlanRecord | UnreadablePlan) -> Entry:
    """Return a plan's entry; a damaged plan may be open once it is restored."""
    if isinstance(found, UnreadablePlan):
        return Entry(found.path.name, is_open=True, origin="")
    return Entry(found.plan.id, found.is_open, found.plan.origin)


def record_result(settings: Settings, plan: str, result: StageResult, by: str) -> PlanRecord:
    """Append a completed stage to the plan's events. Raises StageRefused when it may not follow."""
    validate_stage(load_plan(settings, plan), result.stage)
    event = {"stage": result.stage, "at": datetime.now(UTC).isoformat(), "by": by, "result": result_json(result)}
    path = _folder(settings, plan) / "events.jsonl"
    stored = path.read_bytes() if path.exists() else b""
    with path.open("ab") as file:
        file.truncate(stored.rfind(b"\n") + 1)
        file.write(json.dumps(event).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if result.stage not in OPEN:
        remove_closed(settings, plan)
    (path.parent / FAILURE).unlink(missing_ok=True)
    return load_plan(settings, plan)


def record_failure(settings: Settings, plan: str, why: str) -> None:
    """Keep why the last attempt of a stage failed; the next completed stage removes it."""
    write_atomically(_folder(settings, plan) / FAILURE, f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}  {why}")


def last_failure(settings: Settings, plan: str) -> str:
    """Return when and why the last attempt of a stage failed, with the next command; "" when it did not."""
    path = _folder(settings, plan) / FAILURE
    return path.read_text("utf-8") if path.is_file() else ""


def save_comparison(settings: Settings, plan: str, comparison: Comparison, page: str) -> None:
    """Write a plan's comparison as JSON and as a page."""
    write_atomically(comparison_path(settings, plan, "json"), json.dumps(comparison.to_json(), indent=1))
    write_atomically(comparison_path(settings, plan, "html"), page)


def load_comparison(settings: Settings, plan: str) -> Comparison | None:
    """Return a plan's comparison, None before it was compared."""
    path = comparison_path(settings, plan, "json")
    return comparison_from_json(path.read_text("utf-8")) if path.is_file() else None


def record_json(record: PlanRecord) -> dict[str, Any]:
    """Return a plan and its events as JSON values."""
    events = [
        {"stage": e.stage, "at": e.at.isoformat(), "by": e.by, "result": result_json(e.result)} for e in record.events
    ]
    plan = json.loads(json.dumps(asdict(record.plan), default=_plain))
    return {**plan, "stage": record.stage, "events": events}


@contextmanager
def plan_lock(settings: Settings, plan: str, within: float = 0.0) -> Iterator[None]:
    """Hold the plan's lock, which ends with the process. Raises PlanBusy when it is not free within `within` s."""
    load_plan(settings, plan)
    with _locked(_folder(settings, plan) / "lock", plan, within):
        yield


@contextmanager
def planning_lock(settings: Settings, within: float = PLANNING_TIMEOUT) -> Iterator[None]:
    """Hold the lock for creating plans: two at once would not see each other as a conflict.

    Raises PlanBusy when it is not free within `within` seconds.
    """
    folder = _plans_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "planning.lock", "that is being created", within):
        yield


@contextmanager
def _locked(path: Path, plan: str, within: float) -> Iterator[None]:
    with path.open("a+") as file:
        _await_lock(file, plan, within)
        file.truncate(0)
        file.write(process_label())
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
    """Return the path of the plan's comparison, as `json` or `html`."""
    return _folder(settings, plan) / f"comparison.{kind}"


def _folder(settings: Settings, plan: str) -> Path:
    return plan_path(settings, plan)


def _is_written(settings: Settings, plan: str) -> bool:
    return PLAN_ID.fullmatch(plan) is not None and (_folder(settings, plan) / "plan.json").is_file()


def _plans_folder(settings: Settings) -> Path:
    return plan_path(settings, "any").parent


_read_before: dict[Path, tuple[list[tuple[int, int]], PlanRecord]] = {}
"""Plans that this process has read, with the state that their files had: parsing takes a millisecond for each."""


def _state_of(path: Path) -> tuple[int, int]:
    """Return time and size of a file, zeros without one."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def _read_plan(path: Path) -> Plan:
    stored = json.loads(path.read_text("utf-8"))
    # Older versions stored `requested` as `asked`.
    requested = stored.pop("asked", "")
    parts = {
        "planned_at": datetime.fromisoformat(stored["planned_at"]),
        "changes": [TableChange(**change) for change in stored["changes"]],
        "predicted": Prediction(**{"files": 0, **stored["predicted"]}),
        "slice": None if stored.get("slice") is None else parsed_slice(stored["slice"]),
    }
    return Plan(**{"requested": requested, **stored, **parts})


def _read_events(path: Path) -> Iterator[Event]:
    if not path.exists():
        return
    for line in path.read_text("utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            stored = json.loads(line)
            # Older versions stored the result as `facts`.
            result = read_result(Stage(stored["stage"]), stored["result"] if "result" in stored else stored["facts"])
            yield Event(datetime.fromisoformat(stored["at"]), stored["by"], result)


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
