"""Links from a task to Headrace's pages: its plan's comparison, its dataset's rule results."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperatorLink

from include.ground.settings import load_settings

PAGES = "/headrace"


class ComparisonLink(BaseOperatorLink):
    """A button on the task's page, once the task has ended."""

    name = "Comparison"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address of the comparison of the run's plan, "" when there is none."""
        from include.plans.journal import comparison_path
        from include.plans.lookup import find_plan

        settings = load_settings()
        record = find_plan(settings, f"{ti_key.dag_id}/{ti_key.run_id}")
        if record is None or not comparison_path(settings, record.plan.id, "html").is_file():
            return ""
        return f"{PAGES}/plans/{record.plan.id}"


class RuleResultsLink(BaseOperatorLink):
    """A button to the dataset's last rule results."""

    name = "Rule results"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address of the rule results of the task's dataset, "" when there are none yet."""
        from include.ground.paths import docs_page

        dataset = ti_key.dag_id.partition("__")[2]
        page = docs_page(load_settings(), dataset)
        return f"{PAGES}/docs/{dataset}/{page.name}" if page.is_file() else ""
