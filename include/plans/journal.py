"""The plan folders: one folder for each plan in the state folder. Only this module reads and writes them.

Plans are found by the index (`index.py`), which is refreshed first. A run of Airflow that has ended gets no plan any
more.

Guarantee: a stage's event is on disk when `record_result` returns.
After a crash: a line of events.jsonl that was cut off counts as not written.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from include.declare.derived_dataset import all_dataset_names
from include.declare.history_slice import parsed_slice
from include.declare.release_diff import TableChange
from include.ground.durable_files import write_atomically
from include.ground.errors import Refused, Terminal, Transient
from include.ground.paths import ended_runs_path, local_warehouse, plan_path
from include.ground.processes import process_label
from include.ground.settings import Settings
from include.plans import index
from include.plans.comparison import Comparison, comparison_from_json
from include.plans.index import enter, enter_ahead, entry_of
from include.plans.plan import (
    KIND_NAMES,
    PLAN_ID,
    Applied,
    Event,
    Member,
    Plan,
    PlanRecord,
    Prediction,
    Stage,
    StageResult,
    read_result,
    result_json,
    validate_stage,
)
from include.state.json_file import JsonFile
from include.state.lease import LockHeld, take_lock

# Planning takes seconds (it reads logs and few columns), so a second planner waits for the lock.
PLANNING_TIMEOUT = 60.0
FAILURE = "failure.txt"
DATASET_IN_JSON = re.compile(r'^ "dataset": "([A-Za-z0-9_.-]+)"', re.MULTILINE)
READ_BEFORE = 1000
"""Number of plans that a process remembers."""
SUGGESTED = 10
"""Number of plans that PlanUnknown names."""


class PlanUnknown(Terminal):
    """No plan has this id; `newest` are ids of the newest plans."""

    def __init__(self, plan: str, newest: list[str]) -> None:
        known = (
            f"the newest: {', '.join(newest)}; headrace plan list shows more" if newest else "there are no plans yet"
        )
        super().__init__(f"plan {plan!r} is unknown", known)
        self.plan, self.newest = plan, newest


@dataclass(frozen=True)
class UnreadablePlan:
    """A plan folder that is not a plan, and the reason.

    `dataset`: whose data the plan may need; "" when nothing names it, None when the folder is no plan's.
    """

    path: Path
    why: str
    dataset: str | None = None


class PlanUnreadable(Terminal):
    """The files of a plan are damaged; `found` says where and why."""

    def __init__(self, found: UnreadablePlan) -> None:
        super().__init__(
            f"{found.path} cannot be read as a plan ({found.why}); it was left alone{_blocked_removal(found.dataset)}",
            f"restore it from a backup, or move it away: mv {str(found.path)!r} /tmp/",
        )
        self.found = found


def _blocked_removal(dataset: str | None) -> str:
    """Return which data is kept because a damaged plan of a dataset may need it."""
    if dataset is None:
        return ""
    if dataset:
        return f"; data of ended plans of {dataset} is not removed"
    return "; its dataset is unknown, so data of ended plans is not removed for any dataset"


class PlanBusy(Transient):
    """Another command is working on the plan."""

    def __init__(self, plan: str, holder: str) -> None:
        super().__init__(f"another command ({holder}) is working on plan {plan}; nothing was done", "try again later")
        self.plan = plan


def save_plan(settings: Settings, plan: Plan) -> PlanRecord:
    """Write a new plan; return it as recorded."""
    # The folder first: an entry without one is dropped.
    plan_path(settings, plan.id).mkdir(parents=True, exist_ok=True)
    enter(settings, entry_of(PlanRecord(plan, ())))
    write_atomically(plan_path(settings, plan.id) / "plan.json", json.dumps(asdict(plan), indent=1, default=_plain))
    return load_plan(settings, plan.id)


def load_plan(settings: Settings, plan: str) -> PlanRecord:
    """Return a plan and its events. Raises PlanUnknown, PlanUnreadable."""
    if not is_written(settings, plan):
        raise PlanUnknown(plan, index.newest_ids(settings, SUGGESTED))
    folder = plan_path(settings, plan)
    try:
        state = (_state_of(folder / name) for name in ("plan.json", "events.jsonl"))
        return _read_folder(folder, *state)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        why = f"{type(error).__name__}: {str(error)[:200]}"
        raise PlanUnreadable(UnreadablePlan(folder, why, _named_dataset(settings, folder))) from error


def _named_dataset(settings: Settings, folder: Path) -> str:
    """Return the dataset that a damaged plan's file or folder names; "" when none or more than one may be meant."""
    with suppress(OSError, UnicodeDecodeError):
        # Also of a file that was cut off.
        if named := DATASET_IN_JSON.search((folder / "plan.json").read_text("utf-8")):
            return named[1]
    series = folder.name.rpartition("-")[0]
    kind = next((kind for kind in KIND_NAMES if series.startswith(f"{kind}-")), "")
    if kind:
        return series.removeprefix(f"{kind}-")
    tables = local_warehouse(settings)
    known = {*all_dataset_names(settings), *(path.name for path in (tables.iterdir() if tables.is_dir() else ()))}
    found = [name for name in known if series.endswith(f"-{name}")]
    return found[0] if len(found) == 1 else ""


def record_result(settings: Settings, plan: str, result: StageResult, by: str) -> PlanRecord:
    """Append a completed stage to the plan's events. Raises StageRefused when it may not follow."""
    before = load_plan(settings, plan)
    validate_stage(before, result.stage)
    event = Event(datetime.now(UTC), by, result)
    entry = entry_of(replace(before, events=[*before.events, event]))
    enter_ahead(settings, entry_of(before), entry)
    _append(plan_path(settings, plan) / "events.jsonl", event)
    # The stage is recorded: an index entry that is ahead of it is no error.
    with suppress(index.PlanIndexUnavailable):
        enter(settings, entry)
    (plan_path(settings, plan) / FAILURE).unlink(missing_ok=True)
    return load_plan(settings, plan)


def _append(path: Path, event: Event) -> None:
    stored = path.read_bytes() if path.exists() else b""
    with path.open("ab") as file:
        file.truncate(stored.rfind(b"\n") + 1)
        file.write(json.dumps(_event_json(event)).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _event_json(event: Event) -> dict[str, Any]:
    return {"stage": event.stage, "at": event.at.isoformat(), "by": event.by, "result": result_json(event.result)}


def record_failure(settings: Settings, plan: str, why: str) -> None:
    """Keep why the last attempt of a stage failed; the next completed stage removes it."""
    write_atomically(plan_path(settings, plan) / FAILURE, f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}  {why}")


def last_failure(settings: Settings, plan: str) -> str:
    """Return when and why the last attempt of a stage failed, with the next command; "" when it did not."""
    path = plan_path(settings, plan) / FAILURE
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
    plan = json.loads(json.dumps(asdict(record.plan), default=_plain))
    return {**plan, "stage": record.stage, "events": [_event_json(event) for event in record.events]}


@contextmanager
def plan_lock(settings: Settings, plan: str, within: float = 0.0) -> Iterator[None]:
    """Hold the plan's lock, which ends with the process. Raises PlanBusy when it is not free within `within` s."""
    load_plan(settings, plan)
    with _locked(settings, [plan, "lock"], plan, within):
        yield


@contextmanager
def planning_lock(settings: Settings, within: float = PLANNING_TIMEOUT) -> Iterator[None]:
    """Hold the lock for creating plans: two at once would not see each other as a conflict.

    Raises PlanBusy when it is not free within `within` seconds.
    """
    with _locked(settings, ["planning.lock"], "that is being created", within):
        yield


@contextmanager
def _locked(settings: Settings, place: Sequence[str], plan: str, within: float) -> Iterator[None]:
    try:
        lock = take_lock(plan_path(settings, place[0]).joinpath(*place[1:]), process_label(), within)
    except LockHeld as error:
        raise PlanBusy(plan, error.holder) from error
    with lock:
        yield


def comparison_path(settings: Settings, plan: str, kind: str) -> Path:
    """Return the path of the plan's comparison, as `json` or `html`."""
    return plan_path(settings, plan) / f"comparison.{kind}"


def is_written(settings: Settings, plan: str) -> bool:
    """Return whether a plan was written."""
    return PLAN_ID.fullmatch(plan) is not None and (plan_path(settings, plan) / "plan.json").is_file()


@lru_cache(maxsize=READ_BEFORE)
def _read_folder(folder: Path, *_: tuple[int, int]) -> PlanRecord:
    """Return a plan and its events; parsing takes a millisecond, so it is not repeated while the files are the same."""
    return PlanRecord(_read_plan(folder / "plan.json"), list(_read_events(folder / "events.jsonl")))


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
        "members": tuple(Member(**member) for member in stored.get("members", ())),
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


@dataclass(frozen=True)
class PlanPage:
    """Plans, newest first. `total`: the number of all plans; `unreadable`: folders that cannot be read as plans."""

    plans: Sequence[PlanRecord]
    total: int
    unreadable: Sequence[UnreadablePlan]


def newest_plans(settings: Settings, limit: int | None = None, skipped: int = 0) -> PlanPage:
    """Return `limit` plans, or all, after the `skipped` newest; `unreadable` has those known and those found here."""
    _refresh(settings)
    names, damaged = index.newest_ids(settings, limit, skipped), index.ids(settings, index.DAMAGED)
    found = [_load(settings, plan) for plan in dict.fromkeys([*names, *damaged])]
    why = "its name is not a plan's id"
    strays = [UnreadablePlan(plan_path(settings, name), why) for name in index.stray_names(settings)]
    return PlanPage(
        [record for record in found if isinstance(record, PlanRecord)],
        index.number_of_plans(settings),
        [*strays, *(each for each in found if isinstance(each, UnreadablePlan))],
    )


def open_plans(settings: Settings) -> list[PlanRecord]:
    """Return every open plan that can be read, in the order of their ids."""
    _refresh(settings)
    return [record for record in _readable(settings, index.ids(settings, index.OPEN)) if record.is_open]


def find_plan(settings: Settings, origin: str) -> PlanRecord | None:
    """Return the plan of an Airflow run, None when there is none or `origin` is empty."""
    if not origin:
        return None
    _refresh(settings)
    records = _readable(settings, index.ids(settings, index.OF_ORIGIN, origin))
    return next((record for record in records if record.plan.origin == origin), None)


def last_applied(settings: Settings, dataset: str) -> PlanRecord | None:
    """Return a dataset's plan that was applied last, is applied, and has changed rows; None when there is none."""
    _refresh(settings)
    records = _readable(settings, index.ids(settings, index.APPLIED, dataset, dataset))
    return next((r for r in records if r.stage is Stage.APPLIED and r.last(Applied).changed != 0), None)


def rolled_back_by(settings: Settings, dataset: str, by: str) -> PlanRecord | None:
    """Return a dataset's newest plan that `by` has rolled back, None when there is none."""
    _refresh(settings)
    records = _readable(settings, index.ids(settings, index.ROLLED_BACK, by, dataset, by, dataset))
    return next((r for r in records if any(e.stage is Stage.ROLLED_BACK and e.by == by for e in r.events)), None)


def plans_of_data(settings: Settings, dataset: str) -> list[PlanRecord]:
    """Return a dataset's plans that may need or leave data. Raises PlanUnreadable: any data may be such a plan's."""
    found = (plan_of(settings, dataset, plan) for plan in plan_ids_of_data(settings, dataset))
    return [record for record in found if record is not None]


def plan_of(settings: Settings, dataset: str, plan: str) -> PlanRecord | None:
    """Return a plan, None when it is another dataset's or not written. Raises PlanUnreadable, unless its remains name
    another dataset.
    """
    try:
        record = written_plan(settings, plan)
    except PlanUnreadable as error:
        if error.found.dataset in ("", dataset):
            raise
        return None
    return record if record is not None and dataset in record.plan.datasets else None


def plan_ids_of_data(settings: Settings, dataset: str) -> list[str]:
    """Return the ids of the plans that `plans_of_data` reads."""
    _refresh(settings)
    return index.ids(settings, index.WITH_DATA, dataset, dataset)


def plans_entered_since(settings: Settings, position: index.IndexPosition) -> tuple[list[str], index.IndexPosition]:
    """Return the ids of plans that are new since a position, and the new position; some may not be written yet."""
    _refresh(settings)
    return index.ids_entered_since(settings, position)


def written_plan(settings: Settings, plan: str) -> PlanRecord | None:
    """Return a plan, None before it is written or when it is gone. Raises PlanUnreadable."""
    try:
        return load_plan(settings, plan)
    except PlanUnknown:
        return None


def next_plan_id(settings: Settings, kind: str, dataset: str) -> str:
    """Return an id that no plan has: `release-flights-3`."""
    _refresh(settings)
    series = f"{kind}-{dataset}"
    return f"{series}-{index.highest_number(settings, series) + 1}"


def advance_index(settings: Settings, end: float) -> bool:
    """Enter plans that have no entry until `end` (monotonic); return whether nothing is missing any more."""
    return index.refresh_index(settings, lambda plan: _entry(_load(settings, plan), plan), end)


def _refresh(settings: Settings) -> None:
    """Enter plans that were added by hand, and plans that were damaged and can be read again."""
    advance_index(settings, math.inf)
    for record in _readable(settings, index.ids(settings, index.DAMAGED)):
        enter(settings, entry_of(record))


def _entry(found: PlanRecord | UnreadablePlan | None, plan: str) -> index.Entry:
    if isinstance(found, PlanRecord):
        return entry_of(found)
    # It may be open once it is restored.
    return index.Entry(plan, (found and found.dataset) or "", planned_at=time.time(), is_read=False)


def _readable(settings: Settings, plans: Iterable[str]) -> Iterator[PlanRecord]:
    found = (_load(settings, plan) for plan in plans)
    return (record for record in found if isinstance(record, PlanRecord))


def _load(settings: Settings, plan: str) -> PlanRecord | UnreadablePlan | None:
    """Return a plan, what is damaged of it, or None before it is written or when it is gone."""
    try:
        return written_plan(settings, plan)
    except PlanUnreadable as error:
        return error.found


KEPT = timedelta(hours=1)
"""Longer than any request waits."""


def plan_of_ended_run(settings: Settings, origin: str, now: datetime) -> PlanRecord | None:
    """Return the plan of a run that has ended; if it has none, what it requested before `now` creates none.

    A plan that is being created is waited for. Raises PlanBusy when that takes too long. Commands have no run: their
    origin is empty.
    """
    found = find_plan(settings, origin) if origin else None
    if found is not None or not origin:
        return found
    with planning_lock(settings):
        found = find_plan(settings, origin)
        if found is None:
            kept = {run: at for run, at in _ended_runs(settings).items() if now - at < KEPT}
            _ended_runs_file(settings).write({**kept, origin: now})
        return found


def refuse_ended_run(settings: Settings, plan: Plan) -> None:
    """Refuse when the run of a new plan has ended since it requested the plan. Needs the planning lock."""
    ended = _ended_runs(settings).get(plan.origin)
    if ended is not None and plan.planned_at <= ended:
        what = f"run {plan.origin} has ended; its plan was not created"
        raise Refused(what, "clear the run, or trigger another one", code="run-ended", origin=plan.origin)


def _ended_runs(settings: Settings) -> dict[str, datetime]:
    # A damaged file must not keep plans from being created.
    return _ended_runs_file(settings).read_if_valid() or {}


def _ended_runs_file(settings: Settings) -> JsonFile[dict[str, datetime]]:
    return JsonFile(ended_runs_path(settings), dict[str, datetime])
