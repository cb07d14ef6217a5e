"""Routes of quality over time."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from include.observe.progress import DerivedProgress
from include.serve.dataset_view import progress_of
from include.serve.page_response import chosen_range, console_of, page
from include.serve.quality_view import quality_view

routes = APIRouter()


@routes.get("/datasets/{name}/quality", response_class=HTMLResponse)
def quality(request: Request, name: str) -> HTMLResponse:
    """Return what rules rejected and warned of over time, and the results of table rules. Raises DatasetUnknown."""
    chosen = chosen_range(request)
    observer = console_of(request).observer
    derived = isinstance(progress_of(observer.snapshot(), name), DerivedProgress)
    view, title = quality_view(observer, name, chosen), f"{name}: quality"
    return page(request, "quality", "Overview", title, dataset=name, derived=derived, view=view, chosen=chosen.name)
