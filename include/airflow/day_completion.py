"""Reports complete days to consumers of the tables: one asset event for each table and day.

Reads: the watermark of the publication. Writes: in Airflow, the last reported day (the asset's state).
Guarantee: a day is reported after the watermark has passed it in UTC and in the time zones of the windows, and the
preceding audit was balanced.
After a crash: a retry reports the same days again; consumers see a day at least once.
Does not: report a day again that was patched later (the plan's own task does).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from airflow.sdk import Asset, BaseOperator, Context
from airflow.sdk.exceptions import AirflowSkipException

from include.airflow.run_context import airflow_errors, origin
from include.declare.windows import Window, day_range
from include.ground.settings import load_settings

REPORTED = "told"
# A new consumer must not receive an event for each day of past years.
AT_FIRST = 31


class ReportCompleteDays(BaseOperator):
    """Report the days that became complete since the last run; skipped when there are none."""

    def __init__(self, *, dataset: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dataset = dataset

    def execute(self, context: Context) -> list[str]:
        """Report the complete days and return them."""
        from include.change.recompute import published_windows
        from include.observe.health import stream_health

        if self.dataset not in (context["ti"].xcom_pull(task_ids="audit") or {}):
            raise AirflowSkipException(f"{self.dataset}: it was not audited by this run")
        with airflow_errors():
            watermark = stream_health(load_settings(), self.dataset).watermark
            windows = published_windows(load_settings(), self.dataset)
        if watermark is None:
            raise AirflowSkipException(f"{self.dataset}: nothing is complete yet")
        tables = [asset for asset in self.outlets if isinstance(asset, Asset)]
        memory = context["asset_state_store"][tables[0]]
        before = last_reported_before(memory.get(REPORTED), origin(context))
        days = [str(day) for day in complete_days(before, watermark, windows)]
        if not days:
            raise AirflowSkipException(f"{self.dataset}: no day has become complete since {before}")
        for table in tables:
            context["outlet_events"][table].add_partitions(days)
        memory.set(REPORTED, {"run": origin(context), "before": str(before or ""), "upto": days[-1]})
        return days


def last_reported_before(remembered: Any, run: str) -> date | None:
    """Return the last day that an earlier run reported; None before the first."""
    if not isinstance(remembered, dict):
        return None
    last = remembered["before"] if remembered["run"] == run else remembered["upto"]
    return date.fromisoformat(last) if last else None


def complete_days(after: date | None, watermark: datetime, windows: Sequence[Window] = ()) -> Iterator[date]:
    """Yield the days after `after` that end before the watermark; the last AT_FIRST when `after` is None.

    A day is complete when it is over in UTC, as silver has it, and in the calendar of each window.
    """
    end = watermark.astimezone(UTC).date()
    day = date.fromordinal(max(1, end.toordinal() - AT_FIRST)) if after is None else after + timedelta(days=1)
    while day < end and day_range(windows, day)[1] <= watermark:
        yield day
        day += timedelta(days=1)
