"""Server-sent events: the part of a page that changes, each time the observer has something new."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from include.ground.errors import HeadraceError
from include.serve.live_observer import LiveObserver
from include.serve.overview_view import overview_view
from include.serve.page_response import chosen_range, console_of, may_read, part, session_of
from include.serve.plan_pages import desk_of, plan_part
from include.serve.stream_pages import dataset_part

routes = APIRouter()
POLL, KEEP_ALIVE = 0.5, 15.0
MOST_STREAMS = 100
"""Maximum number of live pages; further ones get 503 with Retry-After, and are updated by reloading."""
_open = 0


@routes.get("/live/overview")
def live_overview(request: Request) -> Response:
    """Stream the overview."""
    observer, chosen = console_of(request).observer, chosen_range(request)
    return streamed(request, observer, lambda: part("overview", view=overview_view(observer, chosen)))


@routes.get("/live/datasets/{name}")
def live_dataset(request: Request, name: str) -> Response:
    """Stream the page of a dataset. Raises DatasetUnknown."""
    console, chosen = console_of(request), chosen_range(request)

    def render() -> str:
        template, view = dataset_part(console, name, chosen.name)
        return part(template, view=view)

    render()
    return streamed(request, console.observer, render)


@routes.get("/live/plans/{plan}")
def live_plan(request: Request, plan: str) -> Response:
    """Stream the stages of a plan. Raises PlanUnknown."""
    console = console_of(request)

    def render() -> str:
        return part("plan", **plan_part(console, plan, session_of(request)))

    render()
    outcomes = desk_of(console).outcomes
    return streamed(request, console.observer, render, lambda: outcomes.get(plan))


def streamed(
    request: Request, observer: LiveObserver, render: Callable[[], str], own: Callable[[], object] = lambda: None
) -> Response:
    """Return a stream of events, each with the part when it has changed; 503 when too many are open.

    It is rendered after each observation, and when `own`, which this page shows besides, has another value.
    """
    if _open >= MOST_STREAMS:
        return PlainTextResponse("too many pages are open", 503, headers={"Retry-After": "30"})
    return StreamingResponse(_events(request, lambda: (observer.number, own()), render), media_type="text/event-stream")


async def _events(request: Request, version: Callable[[], object], render: Callable[[], str]) -> AsyncIterator[str]:
    global _open
    _open += 1
    rendered: object = None
    last, quiet = "", 0.0
    try:
        # A user who is removed, or has another password, sees no more.
        while may_read(request) and not await request.is_disconnected():
            if (now := version()) != rendered:
                rendered = now
                text = await run_in_threadpool(_rendered, render)
                if text is not None and text != last:
                    last, quiet = text, 0.0
                    yield f"event: part\ndata: {json.dumps(text)}\n\n"
            await asyncio.sleep(POLL)
            quiet += POLL
            if quiet >= KEEP_ALIVE:
                quiet = 0.0
                yield ": still here\n\n"
    finally:
        _open -= 1


def _rendered(render: Callable[[], str]) -> str | None:
    """Return the part; None when it cannot be rendered, for instance because a plan was removed."""
    try:
        return render()
    except HeadraceError:
        return None
