"""The console as a process: `python -m include.serve.console HOST PORT`, until SIGTERM. One FastAPI application.

Guarantee: no page loads anything from elsewhere. Its host name, its token or log-in and its size decide about a request
before anything of its body is read.
After a crash: the runner starts it again at the same port; whoever was logged in logs in again.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from include.declare.dataset import DatasetUnknown, IsDerived
from include.ground.errors import HeadraceError, Refused, Transient
from include.ground.http_server import is_loopback, serve_application
from include.ground.paths import NotAFolderName
from include.ground.settings import Settings, load_settings
from include.plans.journal import PlanUnknown
from include.read.limited_query import QUERIES
from include.read.published_tables import TableUnknown
from include.serve import api, datasets, lineage, overview, pages, plans, tables
from include.serve.api import PREFIX, token_refusal
from include.serve.log_in import Access
from include.serve.observer import LiveObserver
from include.serve.pages import HEADERS, STATIC, Console, FormRefused, may_read, page
from include.serve.plans import DecisionUnknown
from include.serve.work import RemoteWork

MOST_BODY_BYTES = 64_000
# The API has tokens instead of log-ins.
OPEN_TO_ALL = ("/static/", "/log-in", "/health", f"{PREFIX}/")
LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}


class RequestGuard:
    """The application behind the decisions, with headers for all answers and a bound for all bodies."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        refused = refusal_of(Request(scope))
        if refused is not None:
            await refused(scope, receive, send)
            return
        is_static = scope["path"].startswith("/static/")
        headers = HEADERS | ({"Cache-Control": "max-age=31536000, immutable"} if is_static else {})
        await self.application(scope, _bounded(receive), _with_headers(send, headers))


def refusal_of(request: Request) -> Response | None:
    """Return the answer to a request that is refused, None for one that is not."""
    if not is_own_name(request):
        return PlainTextResponse("this console has another name", 421, headers=HEADERS)
    is_api = request.url.path.startswith(f"{PREFIX}/")
    if is_api and (refused := token_refusal(request)) is not None:
        return refused
    if not request.url.path.startswith(OPEN_TO_ALL) and not may_read(request):
        return RedirectResponse("/log-in", 303, headers=HEADERS)
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MOST_BODY_BYTES:
        what = f"the body has more than {MOST_BODY_BYTES:,} bytes; it was not read"
        if is_api:
            return JSONResponse({"error": what, "is_terminal": True}, 413, headers=HEADERS)
        return PlainTextResponse(what, 413, headers=HEADERS)
    return None


def is_own_name(request: Request) -> bool:
    """Whether a request may use its host name: on loopback only names of this machine (DNS rebinding)."""
    return (request.url.hostname or "") in LOCAL_NAMES or not request.app.state.is_loopback


def _bounded(receive: Any) -> Any:
    """Return a `receive` for which a body of unknown length ends at the bound."""
    seen = 0

    async def bounded() -> Any:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MOST_BODY_BYTES:
            raise HTTPException(413, f"the body has more than {MOST_BODY_BYTES:,} bytes; nothing was done")
        return message

    return bounded


def _with_headers(send: Any, headers: dict[str, str]) -> Any:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message.get("headers", ())}
            message["headers"] = [*message.get("headers", ()), *(each for each in raw if each[0] not in given)]
        await send(message)

    return sending


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
    for module in (overview, datasets, tables, lineage, plans, pages, api):
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
    if request.url.path.startswith(PREFIX):
        return api.refusal(error, status)
    return page(
        *(request, "problem", "", "Not found" if status == 404 else "This did not work"),
        status=status,
        what=error.what,
        remedy=error.remedy,
    )


async def unknown_page(request: Request, error: Any) -> Response:
    """Return the page for an address that does not exist."""
    if request.url.path.startswith(PREFIX):
        return JSONResponse({"error": str(error.detail), "is_terminal": True}, error.status_code)
    what = "This page does not exist." if error.status_code == 404 else str(error.detail)
    return page(request, "problem", "", "Not found", status=error.status_code, what=what, remedy="")


async def wrong_value(request: Request, error: Any) -> Response:
    """Return the page for an address with an invalid value."""
    if request.url.path.startswith(PREFIX):
        return api.wrong_body(error.errors())
    first = error.errors()[0]
    name, value = first["loc"][-1], str(first.get("input"))[:80]
    what = f"{value!r} is not a value of {name}: {first['msg']}"
    return page(request, "problem", "", "Not found", status=422, what=what, remedy="")


def refuse_exposed(settings: Settings, host: str) -> None:
    """Raise Refused (console-exposed) when others than this machine could read without a log-in."""
    # Without users nobody can log in, so that only the API answers, by its token.
    if not is_loopback(host) and settings.console_passwords is None and settings.api_token_file is None:
        raise Refused(
            f"at {host} others than this machine could read every table without a log-in; the console was not started",
            "set HEADRACE_CONSOLE_PASSWORDS to a file, headrace console --add-user NAME, then the same again",
            code="console-exposed",
            host=host,
        )


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve the console until SIGTERM or SIGINT. Raises Refused (console-exposed)."""
    refuse_exposed(settings, host)
    QUERIES.start_one()
    serve_application(console_app(settings, host), host, port)


if __name__ == "__main__":
    serve(load_settings(), sys.argv[1], int(sys.argv[2]))
