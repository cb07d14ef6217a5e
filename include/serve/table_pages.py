"""Routes of published tables, the SQL box, lineage and storage."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from include.observe.watermark import WatermarkStatus
from include.read.published_tables import pinned
from include.serve.display_values import moment
from include.serve.lineage_view import lineage_view
from include.serve.page_response import Console, asker, console_of, page
from include.serve.query_view import query_view
from include.serve.storage_view import StorageCount
from include.serve.tables_view import VersionMemory, table_view, tables_view

routes = APIRouter()
EXAMPLE = "select * from {} limit 20"


def memory_of(console: Console) -> VersionMemory:
    """Return what this server remembers of table versions."""
    found: VersionMemory = console.memory.setdefault("versions", VersionMemory())
    return found


@routes.get("/tables", response_class=HTMLResponse)
def tables(request: Request) -> HTMLResponse:
    """Return the published tables."""
    console = console_of(request)
    lines = tables_view(console.settings, memory_of(console))
    return page(request, "tables", "Tables", "Published tables", lines=lines)


@routes.get("/tables/{name}", response_class=HTMLResponse)
def table(request: Request, name: str, measure: str = "") -> HTMLResponse:
    """Return a table's first rows, and a chart of a gold table. Raises TableUnknown."""
    console = console_of(request)
    view = table_view(console.settings, name, measure, memory_of(console))
    found = console.observer.snapshot().watermarks.get(view.line.dataset) if view.has_watermark else None
    complete = [] if found is None else [("complete up to (UTC)", moment(found.watermark))]
    waits, query = table_waits(name, found), EXAMPLE.format(name)
    return page(request, "table", "Tables", name, view=view, complete=complete, waits=waits, sql=query)


def table_waits(name: str, found: WatermarkStatus | None) -> list[str]:
    """Return what a gold table waits for, and which partition holds the watermark; nothing unless it is on close."""
    waits = [each.sentence for each in found.waits if each.table == name] if found else []
    return [*waits, found.holder.sentence] if found and found.holder and waits else waits


@routes.get("/sql", response_class=HTMLResponse)
def sql(request: Request, q: str = "") -> HTMLResponse:
    """Return the SQL box with the result of `q`; 400 when it cannot be run, 429 and 503 when too many others run."""
    view = query_view(console_of(request).settings, q, asker(request))
    return page(request, "sql", "SQL", "SQL over the published tables", status=view.status, view=view)


@routes.get("/lineage", response_class=HTMLResponse)
def lineage(request: Request) -> HTMLResponse:
    """Return the drawing of the tables' lineage."""
    settings = console_of(request).settings
    view = lineage_view(settings, sorted(pinned(settings).tables))
    return page(request, "lineage", "Lineage", "Lineage", view=view)


@routes.get("/storage", response_class=HTMLResponse)
def storage(request: Request) -> HTMLResponse:
    """Return the bytes of each part of the state folder."""
    console = console_of(request)
    count: StorageCount = console.memory.setdefault("storage", StorageCount(console.settings))
    return page(request, "storage", "Storage", "Storage", view=count.view())
