"""Routes of quality over time."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from include.console.page_response import chosen_range, console_of, page
from include.console.quality_view import quality_view

routes = APIRouter()


@routes.get("/datasets/{name}/quality", response_class=HTMLResponse)
def quality(request: Request, name: str) -> HTMLResponse:
    """Return what rules rejected and warned of over time, and the results of table rules. Raises DatasetUnknown."""
    chosen = chosen_range(request)
    view = quality_view(console_of(request).observer, name, chosen)
    return page(request, "quality", "Overview", f"{name}: quality", dataset=name, view=view, chosen=chosen.name)
