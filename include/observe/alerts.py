"""Alerts: conditions over metrics, their states between evaluations, and the delivery of each change, once.

Prometheus evaluates the conditions from `infra/observability/alerts.yaml`, which is `rules_text`; `headrace alerts`
without it, one process at a time for a state folder. A change whose delivery was not recorded before a crash is
delivered again; its receiver knows it by alert and labels.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Literal
from urllib.parse import urlsplit

import yaml
from prometheus_client.core import Metric

from include.ground.errors import HeadraceError, Terminal, Transient
from include.ground.paths import alerts_path
from include.ground.processes import process_label
from include.ground.settings import Settings
from include.ground.strict_values import LAG_SECONDS
from include.observe.metrics import HeadraceCollector
from include.state.json_file import JsonFile
from include.state.lease import take_lock


@dataclass(frozen=True)
class AlertCondition:
    """A condition: `metric` `operator` `bound` for `seconds`. `remedy` is the next command."""

    name: str
    metric: str
    operator: Literal["<", ">"]
    bound: float
    seconds: int
    severity: Literal["page", "ticket"]
    summary: str
    remedy: str

    @property
    def expression(self) -> str:
        """The condition in PromQL."""
        return f"{self.metric} {self.operator} {self.bound:g}"

    def holds(self, value: float) -> bool:
        return value < self.bound if self.operator == "<" else value > self.bound


HELD_SECONDS = 900
"""For so long a partition may hold the watermark while others go on; a quiet one is idle after 5 minutes by default."""
CONDITIONS = (
    AlertCondition(
        *("HeadraceProcessFailed", "headrace_process_failed", ">", 0, 0, "page"),
        "{process} failed and is not started again",
        "headrace status",
    ),
    AlertCondition(
        *("HeadraceStreamStalled", "headrace_stalled_seconds", ">", 300, 60, "page"),
        "{dataset}: the driver has made no progress for {value:.0f} s",
        "headrace status",
    ),
    AlertCondition(
        *("HeadraceStreamLagging", "headrace_lag_seconds", ">", LAG_SECONDS, 300, "ticket"),
        "{dataset}: the oldest record that is not published is {value:.0f} s old",
        "headrace status",
    ),
    AlertCondition(
        *("HeadraceUnbalanced", "headrace_audit_balanced", "<", 1, 0, "page"),
        "{dataset}: the last audit found records or rows that are not accounted for",
        "headrace audit",
    ),
    AlertCondition(
        *("HeadraceRejectedRate", "headrace_rejected_share", ">", 0.05, 300, "ticket"),
        "{dataset}: {value:.1%} of the records of the last runs were rejected",
        "headrace rejected summary",
    ),
    AlertCondition(
        *("HeadraceDiskFilling", "headrace_disk_free_share", "<", 0.1, 60, "page"),
        "{value:.1%} of the state folder's disk is free",
        "headrace storage",
    ),
    AlertCondition(
        *("HeadraceWatermarkStuck", "headrace_watermark_stuck_seconds", ">", HELD_SECONDS, 0, "ticket"),
        "{dataset}: partition {partition} has held the watermark for {value:.0f} s while records were published",
        "headrace status",
    ),
)


def rules_text(conditions: Iterable[AlertCondition] = CONDITIONS) -> str:
    """Return the rules file of Prometheus."""
    rules = [_rule(each) for each in conditions]
    head = "# Written by: headrace alerts --rules. The conditions are in include/observe/alerts.py.\n"
    return head + yaml.safe_dump({"groups": [{"name": "headrace", "rules": rules}]}, sort_keys=False, width=200)


def _rule(each: AlertCondition) -> dict[str, Any]:
    return {
        "alert": each.name,
        "expr": each.expression,
        **({"for": f"{each.seconds}s"} if each.seconds else {}),
        "labels": {"severity": each.severity},
        "annotations": {"summary": _template(each.summary), "remedy": each.remedy},
    }


def _template(summary: str) -> str:
    text = summary.replace("{value:.0f}", '{{ printf "%.0f" $value }}')
    text = text.replace("{value:.1%}", "{{ humanizePercentage $value }}")
    for label in ("dataset", "process", "partition"):
        text = text.replace(f"{{{label}}}", f"{{{{ $labels.{label} }}}}")
    return text


FIRING, RESOLVED = "firing", "resolved"
# A release may be replaced while the alert of its dataset fires.
NOT_OF_AN_ALERT = {"release"}
Labels = dict[str, str]


@dataclass(frozen=True)
class AlertState:
    """One alert: whether its condition `holds`, `since` when, and whether its firing was `delivered`."""

    name: str
    labels: Labels
    since: datetime
    value: float
    holds: bool = True
    delivered: bool = False


@dataclass(frozen=True)
class AlertStates:
    """The alerts whose condition holds, or whose end is not delivered yet, by name and labels."""

    alerts: Mapping[str, AlertState] = field(default_factory=dict)


@dataclass(frozen=True)
class AlertChange:
    """A change to deliver: `status` is firing or resolved; `summary` is for people, `remedy` the next command."""

    status: str
    alert: str
    severity: str
    labels: Labels
    value: float
    since: datetime
    summary: str
    remedy: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "since": self.since.isoformat()}


def states_file(settings: Settings) -> JsonFile[AlertStates]:
    """Return the file of the alerts' states."""
    return JsonFile(alerts_path(settings), AlertStates, durable=False)


def updated_states(
    before: AlertStates, families: Iterable[Metric], now: datetime, conditions: Sequence[AlertCondition] = CONDITIONS
) -> AlertStates:
    """Return the states after an evaluation; an alert without a sample keeps its state, for unknown is not resolved."""
    samples = _samples(families)
    found: dict[str, AlertState] = {}
    sampled: set[str] = set()
    for condition in conditions:
        for labels, value in samples.get(condition.metric, ()):
            key = state_key(condition.name, labels)
            sampled.add(key)
            known = before.alerts.get(key)
            if condition.holds(value):
                since = known.since if known is not None and known.holds else now
                found[key] = AlertState(condition.name, labels, since, value, True, bool(known and known.delivered))
            elif known is not None and known.delivered:
                found[key] = replace(known, value=value, holds=False)
    return AlertStates(found | {key: state for key, state in before.alerts.items() if key not in sampled})


def due_changes(
    states: AlertStates, now: datetime, conditions: Sequence[AlertCondition] = CONDITIONS
) -> Iterator[tuple[str, AlertChange]]:
    """Yield the changes to deliver, each with the key of its alert."""
    by_name = {condition.name: condition for condition in conditions}
    for key, state in states.alerts.items():
        condition = by_name.get(state.name)
        if condition is None:
            continue
        is_due = (now - state.since).total_seconds() >= condition.seconds
        if state.holds and is_due and not state.delivered:
            yield key, _change(FIRING, state, condition)
        elif state.delivered and not state.holds:
            yield key, _change(RESOLVED, state, condition)


def with_delivered(states: AlertStates, key: str, change: AlertChange) -> AlertStates:
    """Return the states after a change was delivered; a resolved alert is forgotten."""
    rest = {name: state for name, state in states.alerts.items() if name != key}
    kept = {key: replace(states.alerts[key], delivered=True)} if change.status == FIRING else {}
    return AlertStates(rest | kept)


def state_key(name: str, labels: Mapping[str, str]) -> str:
    """Return the name of an alert with its labels, as Prometheus writes it."""
    return f"{name}{{{','.join(f'{label}={value}' for label, value in sorted(labels.items()))}}}"


def _samples(families: Iterable[Metric]) -> dict[str, list[tuple[Labels, float]]]:
    found: dict[str, list[tuple[Labels, float]]] = {}
    for family in families:
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name not in NOT_OF_AN_ALERT}
            found.setdefault(sample.name, []).append((labels, sample.value))
    return found


def _change(status: str, state: AlertState, condition: AlertCondition) -> AlertChange:
    summary = condition.summary.format(
        **{"dataset": "", "process": "", "partition": "?", **state.labels, "value": state.value}
    )
    facts = (state.name, condition.severity, state.labels, state.value, state.since)
    return AlertChange(status, *facts, summary, condition.remedy)


WITHIN = 10.0
Deliver = Callable[[AlertChange], None]
"""Raises NotDelivered."""


class NotDelivered(Transient):
    """The receiver did not take a change; it is delivered again at the next evaluation."""

    def __init__(self, receiver: str, why: str) -> None:
        super().__init__(
            f"the alert was not delivered to {receiver}: {why}; it is tried again", "headrace alerts --once"
        )
        self.receiver = receiver


@dataclass(frozen=True)
class Webhook:
    """An address that takes each change as a JSON object by POST."""

    url: str

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            why = "is not a receiver of alerts: it must be an address http://… or https://…; nothing was evaluated"
            raise Terminal(f"{self.url[:200]!r} {why}", "headrace alerts --help", code="receiver-invalid")

    def __call__(self, change: AlertChange) -> None:
        body = json.dumps(change.to_json()).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"}, method="POST")
        place = urlsplit(self.url).hostname or ""
        try:
            with urllib.request.urlopen(request, timeout=WITHIN):
                return
        except urllib.error.HTTPError as error:
            raise NotDelivered(place, f"it answered {error.code}") from error
        except (OSError, http.client.HTTPException) as error:
            raise NotDelivered(place, str(getattr(error, "reason", error))) from error


@dataclass(frozen=True)
class CommandReceiver:
    """A shell command that gets each change as a JSON object on its standard input."""

    command: str

    def __call__(self, change: AlertChange) -> None:
        """Deliver a change. Raises NotDelivered when the command fails or does not end in time."""
        try:
            text = json.dumps(change.to_json()) + "\n"
            done = subprocess.run(
                self.command, shell=True, input=text, text=True, capture_output=True, timeout=WITHIN, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise NotDelivered(self.command, f"it did not end within {WITHIN:.0f} s") from error
        if done.returncode != 0:
            raise NotDelivered(self.command, f"it ended with {done.returncode}: {done.stderr.strip()[-200:]}")


def deliver_due(
    states: AlertStates, now: datetime, deliver: Deliver | None, show: Callable[[str], None]
) -> AlertStates:
    """Show every due change and deliver it, if there is a receiver; return the states with what it has taken."""
    for key, change in list(due_changes(states, now)):
        show(f"{now:%Y-%m-%d %H:%M:%S} {change.status}: {change.alert}: {change.summary}   ({change.remedy})")
        try:
            if deliver is not None:
                deliver(change)
        except NotDelivered as error:
            show(error.what)
            continue
        states = with_delivered(states, key, change)
    return states


class AlertEvaluation:
    """Evaluates repeatedly; `show` prints a line."""

    def __init__(self, settings: Settings, receiver: Deliver | None, show: Callable[[str], None]) -> None:
        self.settings, self.receiver, self.show = settings, receiver, show
        self._collector = HeadraceCollector(settings)

    @cached_property
    def states(self) -> AlertStates:
        """The states after the last evaluation, of whichever process. Raises StateFileUnreadable."""
        return states_file(self.settings).read() or AlertStates()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from evaluating the same alerts. Raises LockHeld."""
        with take_lock(alerts_path(self.settings).with_suffix(".lock"), process_label()):
            yield

    def firing(self, now: datetime) -> int:
        """Evaluate and deliver; return how many alerts fire. Raises HeadraceError, OSError."""
        states = updated_states(self.states, self._collector.collect(), now)
        # Updated in memory first: if the file cannot be written, delivered changes are not delivered again.
        self.states = deliver_due(states, now, self.receiver, self.show)
        states_file(self.settings).write(self.states)
        return sum(state.delivered and state.holds for state in self.states.alerts.values())

    def continue_after_errors(self, now: datetime) -> None:
        """Evaluate and deliver; an error, such as a full disk, is shown, and the next evaluation follows."""
        try:
            self.firing(now)
        except (HeadraceError, OSError) as error:
            self.show(f"{now:%Y-%m-%d %H:%M:%S} {error}; evaluated again")
