"""Routes of the overview and of a dataset's pages."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from include.observe.progress import DerivedProgress
from include.serve.dataset_view import (
    contract_view,
    dataset_view,
    derived_view,
    described_contract,
    progress_of,
    rejected_chart,
    rejected_samples,
)
from include.serve.live_observer import RANGES
from include.serve.overview_view import overview_view
from include.serve.page_response import Console, chosen_range, console_of, page
from include.serve.runs_view import runs_view

routes = APIRouter()
DATASETS = "Overview"
BatchNumber = Annotated[int | None, Query(ge=-1, le=2**62)]


@routes.get("/", response_class=HTMLResponse)
def overview(request: Request) -> HTMLResponse:
    """Return the overview of all streams."""
    chosen = chosen_range(request)
    view, live = overview_view(console_of(request).observer, chosen), f"/live/overview?range={chosen.name}"
    return page(request, "overview", "Overview", "Overview", live=live, view=view, chosen=chosen.name)


@routes.get("/datasets/{name}", response_class=HTMLResponse)
def dataset(request: Request, name: str) -> HTMLResponse:
    """Return the page of a dataset. Raises DatasetUnknown."""
    chosen = chosen_range(request)
    template, view = dataset_part(console_of(request), name, chosen.name)
    live = f"/live/datasets/{name}?range={chosen.name}"
    return page(request, template, DATASETS, name, live=live, view=view, chosen=chosen.name)


def dataset_part(console: Console, name: str, range_name: str) -> tuple[str, Any]:
    """Return the template of a dataset's page, and what it shows. Raises DatasetUnknown."""
    each = progress_of(console.observer.snapshot(), name)
    if isinstance(each, DerivedProgress):
        return "derived", derived_view(console.observer, each)
    return "dataset", dataset_view(console.observer, each, RANGES[range_name])


@routes.get("/datasets/{name}/rejected", response_class=HTMLResponse)
def rejected(request: Request, name: str, reason: str | None = None) -> HTMLResponse:
    """Return rejected records over time, and samples with their payloads. Raises DatasetUnknown, TableUnknown."""
    console, chosen = console_of(request), chosen_range(request)
    now = console.observer.snapshot()
    known = getattr(progress_of(now, name), "rejected", {})
    reasons = sorted(known.items(), key=lambda item: (-item[1], item[0]))
    chart = rejected_chart(console.observer, name, chosen, now.at, reason)
    samples = rejected_samples(console.settings, name, reason)
    return page(
        *(request, "rejected", DATASETS, f"{name}: rejected records"),
        dataset=name,
        reason=reason,
        reasons=reasons,
        chart=chart,
        chosen=chosen.name,
        samples=samples,
    )


@routes.get("/datasets/{name}/runs", response_class=HTMLResponse)
def runs(request: Request, name: str, before: BatchNumber = None, after: BatchNumber = None) -> HTMLResponse:
    """Return a page of a dataset's runs, the newest first. Raises DatasetUnknown."""
    console = console_of(request)
    release = progress_of(console.observer.snapshot(), name).release
    chosen = request.query_params.get("release") or release
    view = runs_view(console.observer.ledger, name, chosen, before, after)
    return page(request, "runs", DATASETS, f"{name}: runs", dataset=name, view=view)


@routes.get("/datasets/{name}/contract", response_class=HTMLResponse)
def contract(request: Request, name: str) -> HTMLResponse:
    """Return the contract of the running release, else that of the folder; of a derived dataset, the rules of its
    tables. Raises DatasetUnknown."""
    console = console_of(request)
    each = progress_of(console.observer.snapshot(), name)
    view, release = contract_view(described_contract(console.settings, each)), each.release or "none yet"
    derived, title = isinstance(each, DerivedProgress), f"{name}: contract"
    return page(request, "contract", DATASETS, title, dataset=name, derived=derived, view=view, release=release)
