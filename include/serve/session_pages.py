"""Routes to log in and out, and the check that a form that changes something comes from one of our pages."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from include.ground.errors import Terminal
from include.serve.action_log import log_action
from include.serve.guess_limits import TooManyAttempts
from include.serve.log_in import SESSION_SECONDS, Access, PasswordFileUnusable, UserSession
from include.serve.page_response import console_of, page, session_of

routes = APIRouter()


class FormRefused(Terminal):
    """A form that changes something came without log-in, from another site, or without its page's token."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; nothing was done", "log in, open the page again, and repeat it")


async def form_fields(request: Request) -> Mapping[str, str]:
    """Return the fields of a form. Raises FormRefused when it comes from another site."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise FormRefused(f"the form comes from {origin[:80]!r}")
    data = await request.body()
    return dict(parse_qsl(data.decode("utf-8", "replace"), keep_blank_values=True))


async def checked_form(request: Request) -> tuple[UserSession, Mapping[str, str]]:
    """Return session and fields of a form that changes something. Raises FormRefused."""
    session = session_of(request)
    if session is None:
        raise FormRefused("nobody is logged in, or the session has ended, as it does with another password")
    fields = await form_fields(request)
    if not hmac.compare_digest(fields.get("csrf", "").encode(), session.csrf.encode()):
        raise FormRefused("the form does not have the token of this session")
    return session, fields


@routes.get("/log-in", response_class=HTMLResponse)
def log_in_form(request: Request, to: str = "/") -> HTMLResponse:
    """Return the form to log in."""
    return page(request, "log_in", "", "Log in", to=own_address(to), problem="")


@routes.post("/log-in")
async def log_in(request: Request) -> Response:
    """Log in and go to the page that the form came from; the form again, with the reason, when that fails."""
    console, fields = console_of(request), await form_fields(request)
    user, address = fields.get("user", "")[:64], request.client.host if request.client else ""
    problem, to = "wrong user or password", own_address(fields.get("to", "/"))
    try:
        token = await run_in_threadpool(console.access.log_in, user, fields.get("password", ""), address)
    except TooManyAttempts as error:
        # Not logged: guesses must not fill the disk.
        return page(request, "log_in", "", "Log in", status=429, to=to, problem=error.what)
    except PasswordFileUnusable as error:
        token, problem = None, error.what
    await run_in_threadpool(log_action, console.settings, user, address, "log-in", "", "done" if token else problem)
    if token is None:
        return page(request, "log_in", "", "Log in", status=403, to=to, problem=problem)
    answer = RedirectResponse(to, 303)
    answer.set_cookie(
        *(Access.COOKIE, token),
        max_age=int(SESSION_SECONDS),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@routes.post("/log-out")
async def log_out(request: Request) -> Response:
    """End the session. Raises FormRefused."""
    session, _ = await checked_form(request)
    console, address = console_of(request), request.client.host if request.client else ""
    console.access.log_out(request.cookies.get(Access.COOKIE, ""))
    await run_in_threadpool(log_action, console.settings, session.user, address, "log-out", "", "done")
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(Access.COOKIE)
    return answer


def own_address(to: str) -> str:
    """Return an address of this console, / for any other."""
    parts = urlsplit(to) if to.startswith("/") and not to.startswith(("//", "/\\")) else None
    return to if parts is not None and not parts.netloc and parts.path.isprintable() else "/"
