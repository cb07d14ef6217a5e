"""Which alerts fire: conditions over samples, kept between evaluations, so that each change of state is delivered once.

Reads / Writes: `alerts.json` in the state folder.
After a crash: a change whose delivery was not recorded is delivered again; its receiver knows it by alert and labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from prometheus_client.core import Metric

from include.ground.paths import alerts_path
from include.ground.settings import Settings
from include.observe.alert_conditions import CONDITIONS, AlertCondition
from include.state.json_file import JsonFile

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
        """Return the change as JSON values."""
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
