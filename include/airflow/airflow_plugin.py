"""What Airflow loads of Headrace besides the DAGs: pages in its web server, links to them, and `run_listener.py`.

The pages are a plan's comparison, a dataset's rule results, and a redirect to the console.

Reads: the plan's folder, the page of rule results, the console's address.  Writes: nothing.
Guarantee: login is required; no script of a page runs, and data in it is text.
Does not: change a plan; tasks do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.api_fastapi.core_api.security import get_user
from airflow.plugins_manager import AirflowPlugin
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse

from include.airflow import run_listener
from include.airflow.operator_links import PAGES, ComparisonLink, RuleResultsLink
from include.ground.settings import load_settings

# A page is one file: a browser must not load or run anything else for it.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Frame-Options": "SAMEORIGIN",
}

pages = FastAPI(title="Headrace", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(get_user)])


@pages.get("/plans/{plan}", response_class=HTMLResponse)
def comparison(plan: str) -> HTMLResponse:
    """Return a plan's comparison; 404 for an unknown plan and for one without a comparison."""
    from include.plans.journal import PlanUnknown, comparison_path, load_plan

    settings = load_settings()
    try:
        path = comparison_path(settings, load_plan(settings, plan).plan.id, "html")
    except PlanUnknown as error:
        raise HTTPException(404, error.what) from error
    if not path.is_file():
        raise HTTPException(404, f"plan {plan} is not compared yet, or its comparison was removed (retention.plans)")
    return HTMLResponse(path.read_text("utf-8"), headers=PAGE_HEADERS)


@pages.get("/docs/{dataset}/{page:path}", response_class=FileResponse)
def rule_results(dataset: str, page: str) -> FileResponse:
    """Return the page of a dataset's rule results; 404 for any other path."""
    from include.declare.derived_dataset import all_dataset_names
    from include.ground.paths import docs_path

    settings = load_settings()
    if dataset in all_dataset_names(settings):
        site = docs_path(settings, dataset).resolve()
        path = Path(site, page.replace("\0", "")).resolve()
        if path.is_relative_to(site) and path.is_file():
            return FileResponse(path, headers=PAGE_HEADERS)
    raise HTTPException(404, f"rule results of {dataset} have no such page; headrace quality run writes them")


@pages.get("/console")
def console() -> RedirectResponse:
    """Redirect to the console, which has another port; 404 while it does not run."""
    from include.state.process_states import CONSOLE
    from include.state.run_files import is_alive, read_run_file

    settings = load_settings()
    if settings.console_url:
        return RedirectResponse(settings.console_url, 307)
    run = read_run_file(settings, CONSOLE)
    if run is None or not is_alive(run):
        raise HTTPException(404, "the console does not run; headrace up starts it")
    return RedirectResponse(str(run.extra["page"]), 307)


class HeadracePlugin(AirflowPlugin):
    """Named in pyproject.toml as an entry point, so that Airflow finds it wherever the packages are installed."""

    name = "headrace"
    fastapi_apps: list[Any] = [{"app": pages, "url_prefix": PAGES, "name": "Headrace"}]
    # Below Browse: in Airflow 3.3 an entry of the top level that leads to another page is a button without effect.
    external_views: list[Any] = [
        {"name": "Headrace", "href": f"{PAGES}/console", "destination": "nav", "category": "browse"}
    ]
    operator_extra_links: list[Any] = [ComparisonLink(), RuleResultsLink()]
    listeners: list[Any] = [run_listener]
