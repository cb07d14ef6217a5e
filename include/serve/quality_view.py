"""Quality over time: the share of records that each rule rejected or warned of, and the results of table rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from include.declare.contract_rules import RuleResult
from include.observe.stream_history import Interval, StoredValidation, stored_validations
from include.serve.chart_shapes import LineChart, line_chart
from include.serve.display_values import moment, percent, whole
from include.serve.live_observer import LiveObserver, TimeRange
from include.serve.overview_view import BAD, GOOD, IDLE, WARNING, Badge

MOST_VALIDATIONS, MOST_RULES = 12, 12


@dataclass(frozen=True)
class RuleHistory:
    """A table rule: its last result, and its outcomes in the last validations, oldest first."""

    table: str
    rule: str
    expectation: str
    action: str
    observed: str
    outcomes: Sequence[Badge]


@dataclass(frozen=True)
class RuleChart:
    """The share of records that broke a rule of records over time, and their number."""

    chart: LineChart
    records: str
    is_warning: bool


@dataclass(frozen=True)
class QualityView:
    """`records`: how many were validated in the range; `charts`: the most violated rule first."""

    records: str
    charts: Sequence[RuleChart]
    times: Sequence[str]
    rules: Sequence[RuleHistory]
    last: str


def quality_view(observer: LiveObserver, dataset: str, chosen: TimeRange) -> QualityView:
    """Return the quality of a dataset."""
    now = observer.snapshot()
    intervals = observer.intervals(dataset, chosen, now.at)
    stored = stored_validations(observer.settings, dataset, MOST_VALIDATIONS)
    last = stored[-1] if stored else None
    return QualityView(
        records=whole(sum(each.minute.published for each in intervals)),
        charts=_charts(intervals, chosen),
        times=[f"{each.checked_at:%d %b %H:%M}" for each in stored],
        rules=_rules(stored),
        last="" if last is None else f"{moment(last.checked_at)} UTC, release {last.release}, batch {last.batch:,}",
    )


def _charts(intervals: Sequence[Interval], chosen: TimeRange) -> list[RuleChart]:
    labels = [f"{each.since:{chosen.label_format}}" for each in intervals]
    found = []
    for kind in ("reasons", "warned"):
        totals: Counter[str] = sum((getattr(each.minute, kind) for each in intervals), Counter())
        for name, count in totals.most_common(MOST_RULES):
            counts = [(getattr(each.minute, kind)[name], each.minute.published) for each in intervals]
            shares = [part / whole_ if whole_ else None for part, whole_ in counts]
            chart = line_chart(name, labels, shares, percent)
            found.append(RuleChart(chart, whole(count), kind == "warned"))
    return found


def _rules(stored: Sequence[StoredValidation]) -> list[RuleHistory]:
    if not stored:
        return []
    by_validation = [{(c.table, c.rule, c.expectation): c for c in each.checks} for each in stored]
    return [
        RuleHistory(*key, check.action, check.observed, [_outcome(known.get(key)) for known in by_validation])
        for key, check in by_validation[-1].items()
    ]


def _outcome(check: RuleResult | None) -> Badge:
    if check is None:
        return Badge("–", IDLE, "the rule was not evaluated then")
    tone = {"passed": GOOD, "failed": BAD}.get(check.outcome, WARNING)
    return Badge(check.outcome, tone, check.observed)
