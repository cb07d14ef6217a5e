"""What is decided about a request before anything of its body is read: its host name, its token or log-in, its size."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from include.serve.airflow_api import PREFIX, token_refusal
from include.serve.page_response import HEADERS, may_read

MOST_BODY_BYTES = 64_000
# The API has tokens instead of log-ins.
OPEN_TO_ALL = ("/static/", "/log-in", "/health", f"{PREFIX}/")
LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}


class RequestGuard:
    """The application behind the decisions, with headers for all answers and a bound for all bodies."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer a request that is refused, pass on any other."""
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
