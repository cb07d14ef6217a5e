"""What requests of Airflow begin and poll: a plan's stages, audits, validations, maintenance, analyses, rollbacks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

from include.audit.kafka import open_topic
from include.audit.run import counts, record_outcomes, requested_audits
from include.change.analysis import run_analysis
from include.change.jobs import maintain_tables, recompute_derived
from include.change.quality import validate_published
from include.change.stages import NotApproved, PlanReporter, PlanStage, confirm, roll_back, run_plan
from include.declare.analyses import declared_analysis
from include.declare.windows import Window, day_range
from include.ground.errors import HeadraceError, Refused, Terminal, mask_secrets
from include.ground.settings import Settings
from include.observe.ended_plans import remove_ended
from include.observe.processes import standing_sentence
from include.plans.journal import comparison_path, last_applied, load_plan, plan_lock, rolled_back_by
from include.plans.plan import OPEN, Built, Compared, PlanRecord, Stage, result_json
from include.read.publication import read_publication
from include.run.log_trimming import trim_logs
from include.serve.forms import AuditParameters
from include.state.run_files import bootstrap_servers

AT_ONCE = 4
REMEMBERED = 1000
LINES = 100
Report = Callable[[str], None]
Work = Callable[[Report], Mapping[str, Any]]


@dataclass(frozen=True)
class WorkState:
    """Where a piece of work is: when it is `done` its `result`, or the `error`.

    `lines`: the last of the `reported` lines of its progress.
    """

    done: bool = False
    reported: int = 0
    lines: Sequence[str] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    code: str = ""
    is_terminal: bool = False


@dataclass
class RemoteWork:
    """The work of one server, by key; the oldest ended ones are forgotten."""

    states: dict[str, WorkState] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE, "remote"))

    def begin(self, key: str, work: Work) -> None:
        """Begin a piece of work, unless it runs."""
        with self._lock:
            if (known := self.states.pop(key, None)) is not None and not known.done:
                self.states[key] = known
                return
            self._forget_old()
            self.states[key] = WorkState()
        self._pool.submit(self._execute, key, work)

    def state(self, key: str) -> WorkState | None:
        return self.states.get(key)

    def _execute(self, key: str, work: Work) -> None:
        ended: dict[str, Any]
        try:
            ended = {"result": work(lambda line: self._report(key, line))}
        except HeadraceError as error:
            ended = {"error": str(error), "code": error.code, "is_terminal": isinstance(error, Terminal)}
        except Exception as error:  # noqa: BLE001  (who waits elsewhere must learn of it)
            ended = {"error": mask_secrets(f"it failed unexpectedly: {type(error).__name__}: {error}")}
        self.states[key] = replace(self.states[key], done=True, **ended)

    def _report(self, key: str, line: str) -> None:
        state = self.states[key]
        self.states[key] = replace(state, reported=state.reported + 1, lines=[*state.lines, line][-LINES:])

    def _forget_old(self) -> None:
        ended = [key for key, state in self.states.items() if state.done]
        for key in ended[: max(0, len(self.states) - REMEMBERED)]:
            del self.states[key]


# Another process may be working on the plan.
LOCK_WITHIN = 1800.0
# The client waits for the answer.
APPROVED_WITHIN = 45.0
MOST_FINDINGS = 20
# A new consumer must not receive an event for each day of past years.
AT_FIRST = 31


class WorkReporter(PlanReporter):
    """Reports the stages of a plan's run, each as a line."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def begin(self, stage: PlanStage) -> None:
        self.report(f"{stage.name}: {stage.description}")

    def progress(self, facts: Mapping[str, Any]) -> None:
        self.report(progress_line(facts))

    def done(self, stage: PlanStage, record: PlanRecord) -> None:
        self.report(f"plan {record.plan.id} is {record.stage}")


def progress_line(facts: Mapping[str, Any]) -> str:
    """Return what a stage's job reports as a sentence."""
    if "of" in facts:
        return f"{facts['at']}: {facts['done']:,} of {facts['of']:,} done"
    if "comparing" in facts:
        return f"comparing {facts['comparing']}"
    if "failed" in facts:
        return f"the job failed: {facts['failed']}"
    return "the job has finished" if "built" in facts else ", ".join(f"{name} {value}" for name, value in facts.items())


def run_stages(settings: Settings, plan: str, upto: Stage, by: str, report: Report) -> Mapping[str, Any]:
    """Run a plan's remaining stages under its lock; return its stage and the result of `upto`.

    Raises Refused when it has ended, and NotApproved when it needs an approval that nobody gave.
    """
    with plan_lock(settings, plan, LOCK_WITHIN):
        record = _lasting(load_plan(settings, plan))
        record = run_plan(settings, record, WorkReporter(report), lambda _: None, by, upto)
        return {"plan": plan, "stage": record.stage, **_result(settings, record, upto)}


def _lasting(record: PlanRecord) -> PlanRecord:
    """Return a plan that was not rejected, cancelled or rolled back. Raises Refused."""
    plan, stage = record.plan.id, record.stage
    if stage not in (*OPEN, Stage.APPLIED):
        what, remedy = f"plan {plan} is {stage}; nothing was done", "trigger a new run: it creates a new plan"
        raise Refused(what, remedy, code="plan-ended", plan=plan, stage=stage)
    return record


def approve_within_threshold(settings: Settings, plan: str, by: str) -> PlanRecord:
    """Run the plan up to its approval; return it as it was when it needs a person's.

    Raises Terminal (`plan-held`), and Refused when it has ended.
    """
    with plan_lock(settings, plan, APPROVED_WITHIN):
        record = _lasting(load_plan(settings, plan))
        if record.stage in (Stage.APPROVED, Stage.APPLIED):
            return record
        with suppress(NotApproved):
            record = run_plan(settings, record, PlanReporter(), lambda _: None, by, Stage.APPROVED)
        return record


def _result(settings: Settings, record: PlanRecord, upto: Stage) -> Mapping[str, Any]:
    if upto is Stage.BUILT:
        return result_json(record.last(Built))
    if upto is Stage.COMPARED:
        return {**result_json(record.last(Compared)), "page": str(comparison_path(settings, record.plan.id, "html"))}
    return confirmed(settings, record) if upto is Stage.APPLIED else {}


def confirmed(settings: Settings, record: PlanRecord) -> Mapping[str, Any]:
    """Return the confirmation of an applied or rolled back plan, from the tables."""
    return {name: value for name, value in asdict(confirm(settings, record)).items() if value is not None}


def roll_back_plan(settings: Settings, dataset: str, named: str | None, by: str) -> Mapping[str, Any]:
    """Roll back a plan, unless `by` already did; return the confirmation from the tables."""
    plan = named or last_plan(settings, dataset, by)
    if dataset not in load_plan(settings, plan).plan.datasets:
        what = f"plan {plan} is not about {dataset}; nothing was rolled back"
        raise Refused(what, "headrace plan list", code="other-dataset", plan=plan, dataset=dataset)
    with plan_lock(settings, plan, LOCK_WITHIN):
        record = load_plan(settings, plan)
        if record.stage is not Stage.ROLLED_BACK:
            record = roll_back(settings, record, by)
        return confirmed(settings, record)


def last_plan(settings: Settings, dataset: str, by: str) -> str:
    """Return the plan that `by` rolled back, else the last one applied. Raises Refused."""
    found = rolled_back_by(settings, dataset, by) or last_applied(settings, dataset)
    if found is None:
        what = f"{dataset}: no plan is applied; nothing was rolled back"
        raise Refused(what, "headrace plan list", code="nothing-applied", dataset=dataset)
    return found.plan.id


def run_audit(settings: Settings, requested: AuditParameters, report: Report) -> Mapping[str, Any]:
    """Audit, and keep the outcome, as `headrace audit` does."""
    audits = requested_audits(
        settings,
        requested.datasets,
        lambda topic: open_topic(bootstrap_servers(settings), topic, settings.jars),
        recompute_derived,
        report,
        full=requested.full,
        standing=partial(standing_sentence, settings),
    )
    record_outcomes(settings, audits, datetime.now(UTC))
    for audit in audits:
        report(f"{audit.dataset}: {counts(audit) if audit.balanced else 'NOT balanced'}")
    findings = [finding.sentence() for audit in audits for finding in audit.findings]
    unchecked = [f"{each.table}: {each.reason}" for audit in audits for each in audit.unchecked]
    unchecked += [audit.standing for audit in audits if audit.standing]
    return {
        "balanced": not findings and not unchecked,
        "findings": (findings + unchecked)[:MOST_FINDINGS],
        "records": {audit.dataset: counts(audit) for audit in audits},
    }


def validate(settings: Settings, dataset: str) -> Mapping[str, Any]:
    """Validate the published tables; return the failed rules as sentences. Raises NothingPublished."""
    found = validate_published(settings, dataset, datetime.now(UTC))
    failed = [check for check in found.checks if not check.passed]
    sentences = [f"{check.table}, {check.rule} ({check.action}): {check.observed}" for check in failed]
    return {
        "release": found.release,
        "batch": found.batch,
        "evaluated": len(found.checks),
        "failed": sentences,
        "blocking": [line for check, line in zip(failed, sentences, strict=True) if check.blocks],
    }


def maintain(settings: Settings, dataset: str, report: Report) -> Mapping[str, Any]:
    """Remove data of ended plans, and request compaction. Raises NothingPublished, `plan-open`."""
    for removed in remove_ended(settings, dataset, datetime.now(UTC)):
        report(f"removed {removed}")
    done = maintain_tables(settings, dataset)
    for each in done:
        report(str(each))
    return {each.table: {"files": each.files, "now": each.now, "removed": each.removed} for each in done}


def trim(settings: Settings) -> Mapping[str, Any]:
    """Trim long logs and remove old ones; return their numbers."""
    done = trim_logs(settings, datetime.now(UTC))
    return {"trimmed": done.trimmed, "removed": done.removed}


def run_declared_analysis(settings: Settings, dataset: str, name: str, report: Report) -> Mapping[str, Any]:
    """Run an analysis and publish its result. Raises NothingPublished."""
    read_publication(settings, dataset)
    done = run_analysis(settings, declared_analysis(settings, dataset, name), report)
    return {"run": done.run, "version": done.version, "figures": dict(done.figures)}


def complete_days(after: date | None, watermark: datetime, windows: Sequence[Window] = ()) -> Iterator[date]:
    """Yield the days after `after` that end before the watermark; the last AT_FIRST when `after` is None.

    A day is complete when it is over in UTC, as silver has it, and in the calendar of each window.
    """
    end = watermark.astimezone(UTC).date()
    day = date.fromordinal(max(1, end.toordinal() - AT_FIRST)) if after is None else after + timedelta(days=1)
    while day < end and day_range(windows, day)[1] <= watermark:
        yield day
        day += timedelta(days=1)
