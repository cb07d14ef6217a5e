"""What Airflow loads of Headrace besides the DAGs: pages in its web server, links to them, and the listener.

The pages are a plan's comparison, a dataset's rule results, and a redirect to the console.
Guarantee: login is required; no script of a page runs, and data in it is text.
"""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.core_api.security import get_user
from airflow.plugins_manager import AirflowPlugin
from airflow.sdk.exceptions import AirflowException
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse, RedirectResponse

from headrace_airflow import listener
from headrace_airflow.connection import HeadraceConnection, Refused
from headrace_airflow.operators import PAGES, ComparisonLink, RuleResultsLink

# A page is one file: a browser must not load or run anything else for it.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Frame-Options": "SAMEORIGIN",
}

pages = FastAPI(title="Headrace", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(get_user)])


@pages.get("/plans/{plan}", response_class=HTMLResponse)
def comparison(plan: str) -> HTMLResponse:
    """Return a plan's comparison; 404 for an unknown plan and for one without a comparison."""
    return _page(f"plans/{plan}/page")


@pages.get("/docs/{dataset}/{page:path}", response_class=HTMLResponse)
def rule_results(dataset: str, page: str) -> HTMLResponse:
    """Return the page of a dataset's rule results; 404 for any other path."""
    return _page(f"datasets/{dataset}/rule-results/{page}")


def _page(path: str) -> HTMLResponse:
    return HTMLResponse(_answer(path)["html"], headers=PAGE_HEADERS)


def _answer(path: str) -> dict[str, Any]:
    try:
        return HeadraceConnection().request("GET", path)
    except Refused as error:
        raise HTTPException(404, str(error)) from error
    except AirflowException as error:
        raise HTTPException(502, str(error)) from error


@pages.get("/console")
def console() -> RedirectResponse:
    """Redirect to the console, which has another port; 502 while it does not run."""
    return RedirectResponse(_answer("console")["page"] or HeadraceConnection().page, 307)


class HeadracePlugin(AirflowPlugin):
    """Named in pyproject.toml as an entry point, so that Airflow finds it wherever the package is installed."""

    name = "headrace"
    fastapi_apps: list[Any] = [{"app": pages, "url_prefix": PAGES, "name": "Headrace"}]
    # Below Browse: in Airflow 3.3 an entry of the top level that leads to another page is a button without effect.
    external_views: list[Any] = [
        {"name": "Headrace", "href": f"{PAGES}/console", "destination": "nav", "category": "browse"}
    ]
    operator_extra_links: list[Any] = [ComparisonLink(), RuleResultsLink()]
    listeners: list[Any] = [listener]
