"""The console's server as one FastAPI application: routes, headers, errors as pages.

Reads: what its pages read.  Writes: decisions on plans by logged-in users, and the log of actions; nothing else.
Guarantee: no page loads anything from elsewhere; requests with another host's name are refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from include.declare.dataset import DatasetUnknown, IsDerived
from include.ground.errors import HeadraceError, Transient
from include.ground.http_server import is_loopback
from include.ground.paths import NotAFolderName
from include.ground.settings import Settings
from include.plans.journal import PlanUnknown
from include.read.published_tables import TableUnknown
from include.serve import airflow_api, datasets, lineage, overview, page_response, plan_decisions, tables
from include.serve.live_observer import LiveObserver
from include.serve.log_in import Access
from include.serve.page_response import STATIC, Console, FormRefused, page
from include.serve.plan_decisions import DecisionUnknown
from include.serve.remote_work import RemoteWork
from include.serve.request_guard import RequestGuard

NOT_FOUND = (DatasetUnknown, PlanUnknown, TableUnknown, IsDerived, NotAFolderName, DecisionUnknown)


def console_app(settings: Settings, host: str) -> FastAPI:
    """Return the application for a server that listens at `host`."""
    observer = LiveObserver(settings)

    @asynccontextmanager
    async def observing(_: FastAPI) -> AsyncIterator[None]:
        observer.start()
        yield
        observer.stop()

    app = FastAPI(title="Headrace", docs_url=None, redoc_url=None, openapi_url=None, lifespan=observing)
    app.state.console = Console(settings, Access(settings.console_passwords), observer)
    app.state.is_loopback = is_loopback(host)
    app.state.work = RemoteWork()
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    for module in (overview, datasets, tables, lineage, plan_decisions, page_response, airflow_api):
        app.include_router(module.routes)
    app.add_api_route("/health", healthy, methods=["GET"])
    app.add_middleware(RequestGuard)
    app.add_exception_handler(HeadraceError, problem)
    app.add_exception_handler(HTTPException, unknown_page)
    app.add_exception_handler(RequestValidationError, wrong_value)
    return app


def healthy() -> Response:
    """Answer that the server works."""
    return PlainTextResponse("ok")


async def problem(request: Request, error: Any) -> Response:
    """Return an error of the platform as a page with the next command."""
    status = 404 if isinstance(error, NOT_FOUND) else 503 if isinstance(error, Transient) else 409
    status = 403 if isinstance(error, FormRefused) else status
    if request.url.path.startswith(airflow_api.PREFIX):
        return airflow_api.refusal(error, status)
    return page(
        *(request, "problem", "", "Not found" if status == 404 else "This did not work"),
        status=status,
        what=error.what,
        remedy=error.remedy,
    )


async def unknown_page(request: Request, error: Any) -> Response:
    """Return the page for an address that does not exist."""
    if request.url.path.startswith(airflow_api.PREFIX):
        return JSONResponse({"error": str(error.detail), "is_terminal": True}, error.status_code)
    what = "This page does not exist." if error.status_code == 404 else str(error.detail)
    return page(request, "problem", "", "Not found", status=error.status_code, what=what, remedy="")


async def wrong_value(request: Request, error: Any) -> Response:
    """Return the page for an address with an invalid value."""
    if request.url.path.startswith(airflow_api.PREFIX):
        return airflow_api.wrong_body(error.errors())
    first = error.errors()[0]
    name, value = first["loc"][-1], str(first.get("input"))[:80]
    what = f"{value!r} is not a value of {name}: {first['msg']}"
    return page(request, "problem", "", "Not found", status=422, what=what, remedy="")
