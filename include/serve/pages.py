"""What all pages share: the frame, the session, live parts, log-in, headers that forbid loading other content."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.sse import ServerSentEvent

from include.ground.errors import HeadraceError, Terminal
from include.ground.http_server import source_network
from include.ground.render_template import html_templates
from include.ground.settings import Settings
from include.serve.action_log import log_action
from include.serve.charts import FILTERS
from include.serve.log_in import SESSION_SECONDS, Access, PasswordFileUnusable, TooManyAttempts, UserSession
from include.serve.observer import RANGES, LiveObserver, TimeRange

STATIC = Path(__file__).parent / "static"
LINKS = (
    ("/", "Overview"),
    ("/plans", "Plans"),
    ("/tables", "Tables"),
    ("/lineage", "Lineage"),
    ("/storage", "Storage"),
    ("/sql", "SQL"),
)
# A page loads nothing from other hosts, and no text in it can run as a script or a style.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
PAGES = html_templates(FILTERS)
routes = APIRouter()


@dataclass
class Console:
    """What the pages of one server share."""

    settings: Settings
    access: Access
    observer: LiveObserver
    memory: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PageFrame:
    """The frame around a page's content: `live` is the address of its event stream, "" for a page that stays."""

    section: str
    path: str
    live: str
    user: str
    csrf: str
    can_log_in: bool
    links: Sequence[tuple[str, str]] = LINKS
    version: str = ""


def console_of(request: Request) -> Console:
    """Return what the server of this request shares."""
    found: Console = request.app.state.console
    return found


def session_of(request: Request) -> UserSession | None:
    """Return the session of who is logged in, None for everybody else."""
    return console_of(request).access.session(request.cookies.get(Access.COOKIE, ""))


def may_read(request: Request) -> bool:
    """Whether the request may see tables: from this machine if no other reaches the server, else who is logged in."""
    return request.app.state.is_loopback or session_of(request) is not None


def address_of(request: Request) -> str:
    """Return the address of the client."""
    return request.client.host if request.client else ""


def asker(request: Request) -> str:
    """Return who asks: the user who is logged in, else the network of the request."""
    session = session_of(request)
    return session.user if session else source_network(address_of(request))


def chosen_range(range: str = "hour") -> TimeRange:  # noqa: A002  (the name in addresses)
    """Return the time range that the address requests; an hour by default."""
    return RANGES.get(range, RANGES["hour"])


Shared = Annotated[Console, Depends(console_of)]
Chosen = Annotated[TimeRange, Depends(chosen_range)]


def page(
    request: Request, template: str, section: str, title: str, *, live: str = "", status: int = 200, **values: Any
) -> HTMLResponse:
    """Return a page of `templates/console`."""
    session, query = session_of(request), request.url.query
    frame = PageFrame(
        section=section,
        path=request.url.path + (f"?{query}" if query else ""),
        live=live,
        user=session.user if session else "",
        csrf=session.csrf if session else "",
        can_log_in=console_of(request).access.is_configured,
        version=static_version(),
    )
    text = PAGES.get_template(f"console/{template}.html.j2").render(title=title, page=frame, **values)
    return HTMLResponse(text, status_code=status)


def part(template: str, **values: Any) -> str:
    """Return the part of a page that changes."""
    return PAGES.get_template(f"console/{template}_live.html.j2").render(values)


@cache
def static_version() -> str:
    """Return what the addresses of style and script end with, so that a browser never keeps an older one."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


POLL = 0.5
MOST_STREAMS = 100
"""Maximum number of live pages; further ones get 503 with Retry-After, and are updated by reloading."""
_open = 0


def refuse_many() -> None:
    """Refuse a live page when too many are open. Raises HTTPException."""
    if _open >= MOST_STREAMS:
        raise HTTPException(503, "too many pages are open", {"Retry-After": "30"})


async def events(
    request: Request, render: Callable[[], str], own: Callable[[], object] = lambda: None
) -> AsyncIterator[ServerSentEvent]:
    """Yield the part of a page each time it has changed.

    It is rendered after each observation, and when `own`, which this page shows besides, has another value.
    """
    global _open
    _open += 1
    observer, rendered, last = console_of(request).observer, None, ""
    try:
        # A user who is removed, or has another password, sees no more.
        while may_read(request):
            if (now := (observer.number, own())) != rendered:
                rendered = now
                text = await run_in_threadpool(_rendered, render)
                if text is not None and text != last:
                    last = text
                    yield ServerSentEvent(data=text, event="part")
            await asyncio.sleep(POLL)
    finally:
        _open -= 1


def _rendered(render: Callable[[], str]) -> str | None:
    """Return the part; None when it cannot be rendered, for instance because a plan was removed."""
    try:
        return render()
    except HeadraceError:
        return None


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


async def checked_session(request: Request) -> UserSession:
    """Return the session of a form that changes something. Raises FormRefused."""
    session = session_of(request)
    if session is None:
        raise FormRefused("nobody is logged in, or the session has ended, as it does with another password")
    fields = await form_fields(request)
    if not hmac.compare_digest(fields.get("csrf", "").encode(), session.csrf.encode()):
        raise FormRefused("the form does not have the token of this session")
    return session


Checked = Annotated[UserSession, Depends(checked_session)]


@routes.get("/log-in")
def log_in_form(request: Request, to: str = "/") -> HTMLResponse:
    """Return the form to log in."""
    return page(request, "log_in", "", "Log in", to=own_address(to), problem="")


@routes.post("/log-in")
def log_in(request: Request, console: Shared, fields: Annotated[Mapping[str, str], Depends(form_fields)]) -> Response:
    """Log in and go to the page that the form came from; the form again, with the reason, when that fails."""
    user, address, to = fields.get("user", "")[:64], address_of(request), own_address(fields.get("to", "/"))
    problem = "wrong user or password"
    try:
        token = console.access.log_in(user, fields.get("password", ""), address)
    except TooManyAttempts as error:
        # Not logged: guesses must not fill the disk.
        return page(request, "log_in", "", "Log in", status=429, to=to, problem=error.what)
    except PasswordFileUnusable as error:
        token, problem = None, error.what
    log_action(console.settings, user, address, "log-in", "", "done" if token else problem)
    if token is None:
        return page(request, "log_in", "", "Log in", status=403, to=to, problem=problem)
    answer, is_secure = RedirectResponse(to, 303), request.url.scheme == "https"
    seconds = int(SESSION_SECONDS)
    answer.set_cookie(Access.COOKIE, token, max_age=seconds, httponly=True, samesite="strict", secure=is_secure)
    return answer


@routes.post("/log-out")
def log_out(request: Request, console: Shared, session: Checked) -> Response:
    """End the session. Raises FormRefused."""
    console.access.log_out(request.cookies.get(Access.COOKIE, ""))
    log_action(console.settings, session.user, address_of(request), "log-out", "", "done")
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(Access.COOKIE)
    return answer


def own_address(to: str) -> str:
    """Return an address of this console, / for any other."""
    parts = urlsplit(to) if to.startswith("/") and not to.startswith(("//", "/\\")) else None
    return to if parts is not None and not parts.netloc and parts.path.isprintable() else "/"
