"""Alert conditions: each is a metric, a bound, and for how long the bound must be crossed.

Prometheus evaluates them from `infra/observability/alerts.yaml`, which is `rules_text`; `headrace alerts` without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from include.ground.strict_values import LAG_SECONDS


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
        """Return whether a value crosses the bound."""
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
    head = "# Written by: headrace alerts --rules. The conditions are in include/observe/alert_conditions.py.\n"
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
    """Return a summary in Prometheus' template language."""
    text = summary.replace("{value:.0f}", '{{ printf "%.0f" $value }}')
    text = text.replace("{value:.1%}", "{{ humanizePercentage $value }}")
    for label in ("dataset", "process", "partition"):
        text = text.replace(f"{{{label}}}", f"{{{{ $labels.{label} }}}}")
    return text
