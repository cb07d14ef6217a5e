"""The parts that all pages share: navigation, the logged-in user, headers that forbid loading other content."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse

from include.ground.http_server import source_network
from include.ground.render_template import render_html
from include.ground.settings import Settings
from include.serve.live_observer import RANGES, LiveObserver, TimeRange
from include.serve.log_in import Access, UserSession

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


def asker(request: Request) -> str:
    """Return who asks: the user who is logged in, else the network of the request."""
    session = session_of(request)
    return session.user if session else source_network(request.client.host if request.client else "")


def chosen_range(request: Request) -> TimeRange:
    """Return the time range that the address requests; an hour by default."""
    return RANGES.get(request.query_params.get("range", "hour"), RANGES["hour"])


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
    text = render_html(f"console/{template}.html.j2", title=title, page=frame, **values)
    return HTMLResponse(text, status_code=status)


def part(template: str, **values: Any) -> str:
    """Return the part of a page that changes."""
    return render_html(f"console/{template}_live.html.j2", **values)


@cache
def static_version() -> str:
    """Return what the addresses of style and script end with, so that a browser never keeps an older one."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
